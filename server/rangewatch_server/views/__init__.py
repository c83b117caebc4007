"""A run in words, for people: its verdict, overview, list, report; `extremes`: exact places."""
