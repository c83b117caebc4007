"""Everything between a closed step and the server: batches, the disk spool, HTTP.

In: blocks of rows, events and samples, from the training thread and the collectors' thread. Out: numbered batches, in
order, each kept on disk until the server has acknowledged it. All work is on threads of its own; the training thread
only appends to a bounded queue.
"""
