"""One readable file per experiment. A configuration, and a function that builds the workflow from it."""
