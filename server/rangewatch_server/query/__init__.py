"""The only readers of stored values: slices of any steps at any level, merged ranks, samples.

In: a connection and what is asked for. Out: numpy arrays, exact for any range, within a time limit; what is damaged is
left out and named. Nothing here writes.
"""
