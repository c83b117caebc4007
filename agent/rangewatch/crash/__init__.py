"""What outlives the process that trains is handed to the node's watcher, which holds it: memory of the kernel's that
another process can still read when it is gone.

The training thread writes its closed steps and where it is into anonymous files (`memfd_create`): stores into mapped
memory, no disk, and nothing that can be full or slow. The node's watcher holds the same files open. Nothing here
imports torch, so that the watcher reads with what the agent writes with.
"""
