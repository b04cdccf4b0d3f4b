"""Calls of ranks: their arguments, their values, their ends."""
