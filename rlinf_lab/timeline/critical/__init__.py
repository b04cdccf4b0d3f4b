"""Who waited for whom. The critical path, and what would be gained if a worker were faster."""
