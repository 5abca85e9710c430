"""What acts and can be trained: networks, the small language model, how it samples, and its weights on disk."""
