"""What is said of a run, for people: its overview, verdict, list and report; `extremes`: exact places.

In: a run's reader, and findings. Out: documents of docs/api.md. Never: a rule of its own.
"""
