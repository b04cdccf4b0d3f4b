"""From a plan to the timeline that it would have."""
