"""Copies of runs: backup to a file while training goes on, and restore into any database."""
