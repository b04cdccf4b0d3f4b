"""A finished run under other plans, and what would be gained."""
