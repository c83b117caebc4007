"""Pure arithmetic: merges of the pyramid, headroom and its states, which NaN or Inf of a step was first.

In and out: numpy arrays. Never: I/O, a clock, or an approximation where the statistic merges exactly.
"""
