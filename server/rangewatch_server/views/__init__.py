"""A run in words, for people: its verdict, overview, list, report, and exact places of extremes."""
