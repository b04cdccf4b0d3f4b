"""Doing it: hosts, executors, sessions, runs."""
