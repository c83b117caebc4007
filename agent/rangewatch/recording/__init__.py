"""What of the open step is recorded: rows in host memory or in a ring on the device, and what surrounds a NaN.

In: (number, tensor) from the hooks. Out: blocks of closed steps, one row of statistics a tensor and step. `observer`
gives tensors their numbers and passes each to the reader of its device; `level` says which kinds are recorded now.
Nothing here knows of a server.

A tensor is (fqn, kind, index, dtype). Gradients are read as they accumulate: on their own rank, before DDP's
reduction, and still multiplied by the loss scale, since that is what the hardware held. FSDP2's `grad` is the reduced
shard, FSDP1's the whole gradient before the reduction. On a CPU a tensor costs one `aminmax`; the full set is taken
every 100 steps and after a step that was not finite. All of it is exact but `sum_sq`, which is within 8e-7.
"""
