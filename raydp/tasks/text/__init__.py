"""Tasks of texts, the embedded one among them, and losses by token."""
