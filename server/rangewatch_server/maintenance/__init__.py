"""What is done to stored runs: retention, deletion, backup and restore, as short jobs in the writer's thread.

In: settings and commands. Out: rows that go, or a copy of them. Never: a tile whose coarser one is not stored goes.
"""
