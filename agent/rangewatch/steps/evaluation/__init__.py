"""Which forwards are of an evaluation, and in which mode the model is trained and evaluated.

In: where a forward of the model begins and ends. Out: `observer.is_evaluating`, series of what evaluations held, and
the events `evaluation_mode`, `frozen_in_train` and `evaluated_in_train`.
Never: a wait for a device.
"""
