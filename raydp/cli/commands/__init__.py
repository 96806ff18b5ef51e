"""The core's sub-commands, one module each. Extensions register theirs by entry points."""
