"""The disk spool of one rank: batches that the server has not acknowledged, in files that outlive the process.

The rank's sender writes (`queue`), the node's watcher and `rangewatch replay` read (`folder`, `upload`). Nothing here
imports torch: the watcher starts in the time that numpy takes. See docs/spool.md for the files and their format.
"""
