"""The search for plans, in numbers only."""
