"""Files, the terminal, imports and waits: what all other packages share."""
