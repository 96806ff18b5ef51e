"""A model of score and utility over (b, T, η), and draws from its posterior."""
