"""Plan search on numbers: problems, fronts, the exact solver, plan trees."""
