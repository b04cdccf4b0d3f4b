"""Does it still move? Waits, deadlocks, failures of other processes."""
