"""Findings over time: opened, acknowledged, silenced, resolved, and told to people who do not look."""
