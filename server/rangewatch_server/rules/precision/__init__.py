"""Rules on low precision: what is left of tensors in the formats they are rounded to, and scales that do not fit."""
