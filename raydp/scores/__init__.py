"""What a trained model leaks: the interface of scores, and the core's own scores."""
