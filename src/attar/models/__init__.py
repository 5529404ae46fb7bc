"""Models on disk and in use: folders, cards, pictures, evaluation, Hugging Face checkpoints."""
