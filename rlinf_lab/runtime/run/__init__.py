"""Runs that one watches, asks and stops."""
