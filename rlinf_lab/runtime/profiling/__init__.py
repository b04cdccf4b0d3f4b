"""Measuring what workers cost."""
