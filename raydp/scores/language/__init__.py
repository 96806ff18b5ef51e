"""What scores of language models share: prompts in batches, generation, losses of texts."""
