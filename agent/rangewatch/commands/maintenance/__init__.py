"""Commands that copy or remove what a server has stored: backup, restore, prune, delete. With --db they work on the
database itself, without a server.
"""
