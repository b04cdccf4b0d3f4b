"""Bytes between processes."""
