"""What every room may use: the one exception boundary, every limit with its unit and reason, the options of `attach`.

Nothing here imports another room, and nothing imports torch.
"""
