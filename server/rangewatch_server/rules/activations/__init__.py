"""Rules on activations: growth toward a dtype's limit, saturation, dead units, attention logits."""
