"""The one write path: batches are checked, counted, folded into tiles, and merged over ranks. One writer, one order.

In: decoded batches and openings. Out: rows of the database in one transaction, and what is not in tiles yet in memory.
A batch is answered when the commit that holds it is done; any order and any repetition give the same tiles.

One incarnation of one rank is a stream. `contiguous` is the last sequence without a gap before it, `frontier` the step
below which everything is in tiles. A body is stored as it came until all its steps are in tiles. With more than 64
streams rows wait compressed, and the reply to a batch asks for fewer and larger ones (`send_every_s`, up to 10 s).

Merged ranks are a stream of rank -1 that no agent sends: its tiles hold every row that is shown of the steps below its
frontier, and what is past it waits in memory. One rule holds it together: a row below the frontier is merged into its
tile in the transaction that counts it. A rank that restarts hides what its older process recorded from there on, which
cannot be subtracted, so the merged tiles from that step on are dropped and made again.

Several servers on one PostgreSQL are equal. A transaction first takes an advisory lock on its runs, then reads again
what another server has changed (`streams.version`). One server keeps a run's merged ranks, by a lock that dies with its
connection. NOTIFY, inside the transaction, informs the others' pages and commands.
"""
