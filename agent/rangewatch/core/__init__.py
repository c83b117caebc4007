"""What every room may use: the one exception boundary, every limit with its unit and reason, the options
of `attach` and which modules they choose, the table of commands and their parser, the version.

Nothing here imports another room, and nothing imports torch.
"""
