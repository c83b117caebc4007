"""Runs of a server in a notebook or a script: details, slices as numpy, pandas or polars, the pages' figures.

    from rangewatch.client import Client

    run = Client("http://127.0.0.1:8642").run("t5-base")
    run.slice("headroom_bits", kind="output", columns=500).array     # (tensors, columns) float64
    run.frame("step,rank,tensor", ["amax", "nan_count"])             # pandas; library="polars" for polars
    run.figure("layers").show()                                      # Plotly
    run.diagnosis()["findings"][0]["summary"]

docs/client.md tells more; docs/api.md what the answers hold.
"""

from rangewatch.client.connection import ServerError, Unavailable
from rangewatch.client.runs import Client, Run
from rangewatch.client.slices import Slice

__all__ = ["Client", "Run", "ServerError", "Slice", "Unavailable"]
