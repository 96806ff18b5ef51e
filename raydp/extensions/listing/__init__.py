"""The sweeps under a storage folder: `raydp list`."""
