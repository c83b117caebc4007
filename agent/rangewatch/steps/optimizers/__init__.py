"""What the optimizers of a step do: which stepped, at which rates, new ones of the same parameters, clips before them.

In: the optimizers and torch's own clip functions. Out: series and events of the step. Never: a change of what they do.
"""
