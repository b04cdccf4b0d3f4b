"""What is seen of a run while it goes on. The line in a shell, and what a dashboard is told."""
