"""Ranks that are built, join, meet and leave while a run goes on."""
