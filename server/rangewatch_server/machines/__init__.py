"""What machines and processes are like: cards, environments, deaths of ranks.

In: stored samples and events. Out: tables and sentences for `rules`, `views` and `routes`. Never: a write.
"""
