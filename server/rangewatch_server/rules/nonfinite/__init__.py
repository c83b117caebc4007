"""The first NaN or Inf of a run: where it began (`search`), what made it (`origin`), what to try (`remedies`)."""
