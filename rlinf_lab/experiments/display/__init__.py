"""What is seen of a run while it goes on: the line in a shell, what a dashboard is told."""
