"""Rangewatch in the trainers that people use: each module is a thin caller of `rangewatch.attach`.

Each imports its library when it is imported itself, and nothing else of the agent imports any of them.
"""
