"""The ranks of one process: channels, weights, elastic groups, liveness."""
