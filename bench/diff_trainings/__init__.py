"""Pairs of trainings for `bench/diff.py`: what is planted in one of them, in which layout, precision and mode."""
