"""The threads of ranks under one engine, and the way out of a host."""
