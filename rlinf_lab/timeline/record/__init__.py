"""Spans as they are written down and kept."""
