"""Weights: published by one worker, pulled by others."""
