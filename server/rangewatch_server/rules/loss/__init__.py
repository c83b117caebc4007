"""Rules on the loss as it was logged: jumps, spikes of a moment, plateaus; and what a jump speaks for."""
