"""Predictors of totals on the same simulated and measured runs, each on architectures that it has not seen."""
