"""Statistics of points tables: spreads, correlations, variances, Hu et al.'s heuristics."""
