"""The driver's side of a run. It is the thread of the user's loop, and what it knows of all hosts."""
