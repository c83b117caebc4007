"""When a step begins and ends, what its time went into, and what the loss scaler does.

In: calls of optimizers, scalers, data loaders and the model. Out: `close_step` on the agent, the series of a step's
phases, `loss_scale` and `found_inf`. `scalers/` is the shelf of kinds of loss scaler; `loss/` reads the loss of
a loop that logs none, `optimizers/` what optimizers do.
"""
