"""The dry run of the user's loop."""
