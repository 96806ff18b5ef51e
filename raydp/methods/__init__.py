"""Training methods: each owns its sampler and the event that is accounted."""
