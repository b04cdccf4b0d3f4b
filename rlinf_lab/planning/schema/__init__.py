"""Checked input: JSON files and arguments, refused by name with the next step."""
