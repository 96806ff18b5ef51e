"""The keyed stream of noise, the lattice that it lies on, and its addition."""
