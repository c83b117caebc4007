"""Rules on scales of low precision: too small, so that values saturate, or stale, behind what they scale."""
