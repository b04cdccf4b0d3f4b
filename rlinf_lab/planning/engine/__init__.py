"""The scheduler's state machine: events in, instructions out, without clock, thread or socket."""
