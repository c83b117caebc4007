"""Rules on gradients: exploding, vanishing, underflow, and what changes them before the optimizer's step."""
