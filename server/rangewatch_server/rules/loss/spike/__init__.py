"""What a loss that jumped and stayed finite speaks for."""
