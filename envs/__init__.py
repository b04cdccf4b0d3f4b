"""Simulator adapters, reached by name only (entry points `rlinf_lab.envs`)."""
