"""What a worker's method does, read from its source."""
