"""Collectives of all ranks laid over one another: who waits for whom, how fast they are, who hangs. Pure but for
`reader`, `summary` and `hang_state`, which read through `query`.

No clock is compared with another host's. A symmetric collective ends on all ranks together, so who was there last has
the least duration, and the others' durations say how long they waited for it.
"""
