"""Ranks of a replicated model that no longer hold the same values."""
