"""Runs on disk. A folder's files, what is written when, and the shelf of all runs."""
