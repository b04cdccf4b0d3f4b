"""``plan="auto"``: measure the first iterations, search, change to the best plan where that pays."""
