"""Virtual tokens: soft prompts and prefixes in front of the text (docs/adapters.md)."""
