"""Faults planted in real trainings: what breaks, where and when is known, and is held against what is said."""
