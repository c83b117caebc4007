"""Rules on smaller formats: what is left of tensors in those that they are really rounded to."""
