"""Rules on the loss as it was logged: spikes and plateaus."""
