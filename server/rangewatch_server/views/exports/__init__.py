"""Any rectangle of steps, ranks and tensors, as JSON or as a CSV, Parquet or Arrow file.

In: what a request asks for. Out: pieces of bounded size, so that a file of any length is streamed. Never: a guess, an
unknown value is NaN or null.
"""
