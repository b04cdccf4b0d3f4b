"""The driver's side of a run. The thread of the user's loop, and what it knows of all hosts."""
