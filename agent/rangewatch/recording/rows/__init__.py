"""The rows of a step while they are filled: on the host, in a ring on the device, inside CUDA graphs.

In: reads of tensors. Out: the rows of closed steps. Never: a wait for a device but where a step is sent.
"""
