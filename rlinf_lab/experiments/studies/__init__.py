"""Several runs beside one another: comparisons and sweeps."""
