"""Scales of low precision, as the libraries that cast by them have them. In come their casts, calls and state; out go
rows of the kinds `scaled_input`, `scaled_weight` and `scaled_grad_output`, and which operands there are.

Nothing here casts anything anew, changes a scale, or asks a device: what a library does not show is unknown.
"""
