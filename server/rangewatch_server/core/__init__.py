"""What every room may use: settings, errors with their codes, time limits of reads, logs, texts, the own metrics.

Imports no other room. Nothing here knows of runs.
"""
