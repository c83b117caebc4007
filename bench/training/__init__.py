"""The training steps that are timed: models, what watches them, and lanes side by side."""
