"""Commands to a run that is training: `trace` and `level`, and what both ask of the server (`ask`)."""
