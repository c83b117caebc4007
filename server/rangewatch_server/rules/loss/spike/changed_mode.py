"""Of a jump: from that very step on the model is trained in `eval()`."""

from __future__ import annotations

from collections.abc import Iterator

from rangewatch.wire.events import EvaluationMode
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.nonfinite.causes import Candidate


def of_mode(evidence: Evidence, step: int) -> Iterator[Candidate]:
    """After it had been trained in `train()`."""
    for event, known in evidence.details(EvaluationMode):
        since = event.step - known.steps + 1
        if known.steps > 0 and known.was_trained and since == step:
            norms = (
                f"{known.norms} batch norm{'s go' if known.norms > 1 else ' goes'} by running statistics from there on"
            )
            drops = f"{known.dropouts} dropout{'s drop' if known.dropouts > 1 else ' drops'} nothing out any more"
            does = " and ".join([norms] * (known.norms > 0) + [drops] * (known.dropouts > 0))
            text = f"The model is in eval() from that very step on, and was in train() before: {does}."
            yield Candidate("eval", 0.92 if known.norms else 0.6, (text,))
            return
