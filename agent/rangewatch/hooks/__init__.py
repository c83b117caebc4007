"""The only torch hooks: on modules, on parameters, around optimizers, and inside compiled regions.

In: tensors as the model's own calls produce them. Out: calls of `recording.observer`. A hook keeps no tensor alive,
runs no collective, never synchronises a device, and its own fault never reaches the training loop.
"""
