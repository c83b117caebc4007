"""What every command of `rangewatch` shares: the table of them, their parsers, and the pages made from these."""
