"""The database: tables and their migrations, engines, tiles with their checksums, names, tokens. No rule of a run's.

The step axis is cut at multiples of 64. When a stream has passed the end of a span its 64 columns become a level 0
tile; merged by 8 they are an eighth of a level 1 tile, and so on. Three parts have the same machinery: `ranges`
(tensors), `series` (loss, loss scale, times), `summary` (least headroom by kind). Two columns ride along in `ranges`:
the step of each `amax` and the first non-finite step, so that every level knows the exact step of what it shows.

A damaged tile is read from the level below; at level 0 its steps are absent, and the reply says which. Death of the
server loses nothing acknowledged. After a power cut SQLite (WAL, `synchronous=NORMAL`) may lack the last commits, and
stays sound; `--sync full` waits for the disk. On SQLite a lock file keeps a second server out.
"""
