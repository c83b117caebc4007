"""What can be wrong with a machine before, or beside, a training: `doctor` for one process, `linkcheck` for all links.

In: the machine's own files, programs and devices. Out: findings as plain values, for the terminal and the dashboard.
Neither needs a server or an attached model.
"""
