"""Any rectangle of steps, ranks and tensors: as JSON for a client, or as a CSV, Parquet or Arrow file."""
