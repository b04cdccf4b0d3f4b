"""One readable file per experiment: a configuration, and a function that builds the workflow from it."""
