"""Ends of channels and their queues, here and in other processes."""
