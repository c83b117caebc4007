"""Collective timing and hang evidence of one rank.

In: calls of torch.distributed, by the best timing source that this torch has (`collector` chooses). Out: rows of
`collective` samples, time that a step waited for, and events when a rank has stopped advancing. Runs no collective
itself, keeps no tensor, and waits for no device.
"""
