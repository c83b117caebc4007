"""`attach`, its handle, and the agent that it puts together.

In: a model, its optimizers and scaler, and options. Out: a running agent; an event when training fails or ends.
`attachment` checks the arguments and hangs up the hooks, `agent` closes steps and ships them, `control` obeys the
server's commands, `stop` ends a training on overflow when it was asked to. After `attach` nothing here raises.
"""
