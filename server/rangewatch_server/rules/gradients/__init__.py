"""Rules on gradients and updates: exploding, vanishing, underflow, weights that do not change."""
