"""Waking, clocks, interrupts."""
