"""Scalars that another tool has recorded, sent as runs: `rangewatch import`."""
