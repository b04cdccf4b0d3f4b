"""Re-planning while a run goes on, and what if a number were another."""
