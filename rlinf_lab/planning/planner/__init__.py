"""Ranked plans, with reasons."""
