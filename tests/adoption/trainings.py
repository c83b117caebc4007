"""The five trainings that take Rangewatch up: how each is started, and the two lines that it gets."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(__file__).parent / "scripts"
IMPORT = "import rangewatch"
RANKS = 2


class Training(NamedTuple):
    """A script that knows no Rangewatch, and what makes it one that does."""

    script: str
    steps: int
    lines: dict[str, str]
    """Line of the script -> the line that is put after it, as far in."""

    libraries: tuple[str, ...]
    """What its environment needs beside torch."""

    tensors: frozenset[tuple[str, str]]
    """(module, kind) of some that must be recorded."""

    ranks: int = 1
    series: tuple[str, ...] = ()
    """What is logged without a further line."""

    @property
    def source(self) -> str:
        return (SCRIPTS / f"{self.script}.py").read_text()

    def taken_up(self) -> str:
        """The script with the lines in it."""
        found: list[str] = []
        for line in self.source.splitlines():
            found.append(line)
            if (added := self.lines.get(line.strip())) is not None:
                found.append(line[: len(line) - len(line.lstrip())] + added)
        return "\n".join(found) + "\n"

    def difference(self) -> list[str]:
        """The lines that are added, as `diff` has it."""
        both = difflib.ndiff(self.source.splitlines(), self.taken_up().splitlines())
        return [line for line in both if not line.startswith("  ")]


def _outputs_and_grads(*layers: str) -> frozenset[tuple[str, str]]:
    outputs = {(layer, kind) for layer in layers for kind in ("output", "grad_output")}
    return frozenset(outputs | {(f"{layer}.weight", "grad") for layer in layers})


ADAM = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)"
ALL = (
    Training(
        "plain_loop", 8,
        {"import torch": IMPORT, 'scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)':
         "rangewatch.attach(model, optimizer, scaler=scaler)"},
        (), _outputs_and_grads("0", "2", "3"), series=("loss_scale",),
    ),
    Training(
        "trainer", 6,
        {"from torch import nn": "from rangewatch.integrations.transformers import RangewatchCallback",
         "args=arguments,": "callbacks=[RangewatchCallback()],"},
        ("transformers", "accelerate"),
        _outputs_and_grads("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "lm_head"),
        series=("loss", "learning_rate"),
    ),
    Training(
        "lightning_fit", 6,
        {"import torch": "from rangewatch.integrations.lightning import RangewatchCallback",
         "logger=False,": "callbacks=[RangewatchCallback()],"},
        ("lightning",), _outputs_and_grads("net.0", "net.2"), series=("loss",),
    ),
    Training(
        "ddp", 6, {"import torch": IMPORT, ADAM: "rangewatch.attach(model, optimizer)"},
        (), _outputs_and_grads("0", "2"), ranks=RANKS,
    ),
    Training(
        "fsdp2", 6, {"import torch": IMPORT, ADAM: "rangewatch.attach(model, optimizer)"},
        (), _outputs_and_grads("0.up", "1.down", "2"), ranks=RANKS,
    ),
)  # fmt: skip
