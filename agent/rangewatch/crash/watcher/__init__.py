"""The watcher: one small process a node and job that sees ranks die, and sends what they could not any more.

It holds what each rank's `crash_state` memory and its pidfd are, so that nothing of either is lost with the process. It
imports no torch, and nothing of it runs in the process that trains.
"""
