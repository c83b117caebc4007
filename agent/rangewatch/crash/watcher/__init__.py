"""The watcher: one small process a node and job that sees ranks die, and sends what they could not any more.

It holds each rank's memory (`crash.memory`) and its pidfd open, so that nothing of either is lost with the
process. It imports no torch, and nothing of it runs in the process that trains.
"""
