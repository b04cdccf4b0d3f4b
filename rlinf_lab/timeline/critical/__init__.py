"""Who waited for whom: the critical path, and what would be gained if a worker were faster."""
