"""Runs on disk: a folder's files, what is written when, and the shelf of all runs."""
