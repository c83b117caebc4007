"""Small trainings in emulated low precision, healthy and failing after public reports: `bench/low_precision.py`.

`quantize` rounds to a format and back with the codes of `rangewatch.statistics`; `models` are the layouts; `cases` what
fails in them, written before any rule that is to see it; `healthy` what does not.
"""
