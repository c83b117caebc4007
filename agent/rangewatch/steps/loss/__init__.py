"""The loss of a step where the loop logs none, and what of its graph was first to be NaN or Inf.

In: the tensors that `backward` is called on. Out: the series `loss`, and the events `loss_graph`,
`loss_function`, `loss_broadcast` and `loss_changed`.
Never: a wait for a device.
"""
