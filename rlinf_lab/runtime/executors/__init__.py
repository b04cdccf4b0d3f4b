"""Starting processes: in this one, in others, on a Ray cluster."""
