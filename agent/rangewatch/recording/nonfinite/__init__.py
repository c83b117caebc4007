"""What is known around a NaN or Inf: tensors beside it, odd steps, rows of the batch, infinities that are meant.

In: the module, its inputs, the batch. Out: events. Never: a tensor that is kept alive.
"""
