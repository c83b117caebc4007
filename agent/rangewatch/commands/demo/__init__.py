"""`rangewatch demo`: a training that really overflows, on any machine with two CPU cores."""
