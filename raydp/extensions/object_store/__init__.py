"""Hand runs over through an object store, where the nodes share no folder; see docs/cluster.md."""
