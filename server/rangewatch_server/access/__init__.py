"""Who may do what: tokens and their roles, sessions, rate limits, bounds on bodies, and the audit of every change.

Host must be ours (DNS rebinding), Origin must be ours for anything that writes. Bodies are bounded before and after
decompression, and all bodies together. Tokens are stored hashed; a change is written to the audit first.
"""
