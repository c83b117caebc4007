"""Figures of cells: rows of tensors or ranks by columns of steps, their states, and the exact place of a worst one.

In: a run's reader and what is asked for. Out: names and arrays. Never: a colour.
"""
