"""What is read of optimizers, around their steps and between them."""
