"""What the optimizer's updates do to the weights: too much, next to nothing, or nothing at all."""
