"""Who waited for whom: the critical path, and what a faster worker would gain."""
