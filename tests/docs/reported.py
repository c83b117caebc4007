"""The run that the docs' examples read: `t5-base`, two ranks of 200 steps with an Inf in one tensor."""

from __future__ import annotations

import numpy as np

from tests.server.process import Server
from tests.server.records import batch, catalogue, opening

RUN, KNOWN, STEPS = "t5-base", catalogue(6), 200


def emit(server: Server) -> None:
    """Send it, as agents do: as run 3, which docs/api.md asks for."""
    for number in (1, 2):
        server.post(opening(KNOWN, f"earlier-{number}"))
    inf_count = np.zeros((len(KNOWN.tensors), STEPS))
    inf_count[3, 120] = 1
    for rank in range(2):
        server.post(opening(KNOWN, RUN, rank=rank, world_size=2))
        columns = {"amax": 1024.0, "inf_count": inf_count}
        answer = server.post(batch(KNOWN, 0, range(STEPS), columns, run=RUN, rank=rank, series={"loss": 2.0}))
        assert answer.status_code == 202, answer.text
