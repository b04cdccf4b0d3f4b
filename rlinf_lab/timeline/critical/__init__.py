"""Who waited for whom. It has the critical path, and what would be gained if a worker were faster."""
