"""From runs and traces to a profile."""
