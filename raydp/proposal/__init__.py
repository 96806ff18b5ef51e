"""A first spec for data that were never swept: what the data look like, what a sweep costs here, and what fits."""
