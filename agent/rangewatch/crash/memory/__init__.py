"""Memory that outlives the process: the closed steps, and where the training thread is.

The training thread writes by plain stores. Where the kernel gives shared memory, the watcher (`crash.watcher`) reads
it once the process is dead; elsewhere it is ordinary memory. `layout` is what both agree on.
"""
