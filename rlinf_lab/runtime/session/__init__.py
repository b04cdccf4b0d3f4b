"""The user's loop over a started executor."""
