"""The sweeps under a storage folder: `raydp list` (docs/commands.md)."""
