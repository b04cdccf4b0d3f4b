"""What shall be done: workers, channels, the traced graph."""
