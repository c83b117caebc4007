"""A GPT trained in one of the ways that trainings have, with the agent and without: the same losses, and all observed.

    python bench/gpu/modes.py MODE [--dry-run]

What is recorded is held against plain hooks that keep clones; losses must be equal bit by bit; and from the third step
on torch raises where the host would wait for the device. `--dry-run`: on a CPU, by way of the device's rows.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what torch asks for to be deterministic
os.environ.setdefault("RANGEWATCH_QUIET", "1")

import torch
from checks import Checks, parser
from tests.agent.ingest_double import IngestDouble
from tests.agent.statistics.reference import KeepEverything, statistics_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.core.guard import Guard
from training.models import Gpt

STEPS = 6
SETTLED = 2
"""Steps after which everything is compiled and every buffer has been made."""
SIZES = {"layers": 3, "width": 128, "heads": 4, "length": 64, "vocabulary": 512}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("mode", choices=MODES)
    chosen = options.parse_args()
    device = torch.device("cpu") if chosen.dry_run else torch.device("cuda", 0)
    if chosen.dry_run:
        torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    Guard.fatal = True  # a fault of the agent fails the part
    checks = Checks()
    trainer = Trainer(checks, IngestDouble(), device)
    try:
        MODES[chosen.mode](trainer)
    finally:
        trainer.ingest.stop()
    return checks.end()


class Trainer:
    """Runs one training twice, and compares."""

    def __init__(self, checks: Checks, ingest: IngestDouble, device: torch.device) -> None:
        self.checks, self.ingest, self.device = checks, ingest, device
        self.is_cuda = device.type == "cuda"

    def compare(
        self,
        forward: Callable[[nn.Module, Tensor], Tensor] | None = None,
        *,
        prepare: Callable[[nn.Module], Any] = lambda model: model,
        wrap: Callable[[nn.Module], Any] = lambda model: model,
        dtype: torch.dtype | None = None,
        scales: bool = False,
        keeps: bool = True,
        **attach_options: Any,
    ) -> None:
        """Both trainings. `prepare` comes before attach, `wrap` after it; `keeps`: hold the records against clones."""
        forward = forward or next_token_loss
        self.begin()
        plain = self.losses(forward, prepare, wrap, dtype, scales, None, None)
        recorded: list[dict[Any, list[Tensor]]] | None = [] if keeps else None
        watched = self.losses(forward, prepare, wrap, dtype, scales, attach_options, recorded)
        self.checks.equal(watched, plain, "losses with the agent, beside those without")
        observed = self.ingest.tensors()
        self.checks.that(len(observed) > 20, f"only {len(observed)} tensors were observed")
        self.checks.figures |= {"tensors": len(observed), "losses": plain}
        for step, kept in enumerate(recorded or []):
            self.hold(observed, step, kept)

    def begin(self) -> None:
        """Forget what has arrived."""
        self.ingest.stop()
        self.ingest = IngestDouble()

    def losses(
        self, forward: Callable[[Any, Tensor], Tensor], prepare: Callable[[nn.Module], Any],
        wrap: Callable[[nn.Module], Any], dtype: torch.dtype | None, scales: bool,
        attach_options: dict[str, Any] | None, recorded: list[dict[Any, list[Tensor]]] | None,
    ) -> list[float]:  # fmt: skip
        """Of each step. `recorded` gets the clones of each step."""
        torch.manual_seed(0)
        model = prepare(Gpt(**SIZES).to(self.device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler(self.device.type, init_scale=2.0**10) if scales else None
        keep = KeepEverything(model) if recorded is not None else None
        losses = []
        with contextlib.ExitStack() as stack:
            handle = None
            if attach_options is not None:
                backend = {} if self.is_cuda else {"backend": "device"}
                attached = rangewatch.attach(
                    model, optimizer, scaler=scaler, url=self.ingest.url, full_every=1, budget_percent=100, **backend,
                    **attach_options,
                )  # fmt: skip
                handle = stack.enter_context(attached)
            called = wrap(model)
            generator = torch.Generator().manual_seed(1)
            for step in range(STEPS):
                ids = torch.randint(512, (4, 65), generator=generator).to(self.device)
                # Gradients that were kept would be outputs of the last CUDA graph, which the next one overwrites.
                optimizer.zero_grad(set_to_none=True)
                torch.compiler.cudagraph_mark_step_begin()
                with self.no_waiting(step >= SETTLED and keep is None):
                    with torch.autocast(self.device.type, dtype, enabled=dtype is not None):
                        loss = forward(called, ids)
                    (scaler.scale(loss) if scaler else loss).backward()
                    if scaler is None:
                        optimizer.step()
                if scaler is not None:
                    scaler.step(optimizer)  # reads found_inf on the host, as it does without an agent
                    with self.no_waiting(step >= SETTLED and keep is None):
                        scaler.update()
                losses.append(loss.detach())
                if keep is not None and recorded is not None:
                    recorded.append({key: [tensor.cpu() for tensor in tensors] for key, tensors in keep.kept.items()})
                    keep.clear()
            if handle is not None and handle._agent is not None:
                self.look_at(handle)
        return [loss.item() for loss in losses]

    def look_at(self, handle: Any) -> None:
        """What the agent says of itself."""
        stats, observer = handle.stats(), handle._agent.observer
        self.checks.equal(stats["dropped"], {}, "what was dropped")
        if self.is_cuda:
            reasons = observer.device.why_not_fused()
            self.checks.equal(set(reasons.values()), {""}, "why the kernels do not read")
        self.checks.figures["not_observed"] = observer.not_observed

    @contextlib.contextmanager
    def no_waiting(self, is_on: bool) -> Iterator[None]:
        """Torch raises where the host waits for the device."""
        if not (is_on and self.is_cuda):
            yield
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def hold(self, observed: dict[Any, Any], step: int, kept: dict[Any, list[Tensor]]) -> None:
        """The records of a step against the clones of it."""
        there = {key for key, steps in observed.items() if step in steps}
        self.checks.equal(sorted(set(kept) - there), [], f"step {step}: not observed")
        for key in there & set(kept):
            for name, expected in statistics_of(kept[key]).items():
                value = observed[key][step][name]
                bound = 1e-6 * expected if name == "sum_sq" else 0.0
                is_same = value == expected or abs(value - expected) <= bound
                self.checks.that(is_same, f"step {step}, {key}: {name} {value!r}, expected {expected!r}")


def next_token_loss(called: Any, ids: Tensor) -> Tensor:
    return F.cross_entropy(called(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


def eager(trainer: Trainer) -> None:
    trainer.compare()
    trainer.compare(keeps=False)  # without the clones, whose copies wait: no synchronisation


def autocast_fp16(trainer: Trainer) -> None:
    dtype = torch.float16 if trainer.is_cuda else torch.bfloat16
    trainer.compare(dtype=dtype, scales=trainer.is_cuda)
    trainer.compare(dtype=dtype, scales=trainer.is_cuda, keeps=False)


def compiled(trainer: Trainer) -> None:
    backend = "inductor" if trainer.is_cuda else "aot_eager"  # what generates code for a CPU takes a minute
    for dtype in (None, torch.bfloat16):  # where a value is rounded depends on what is fused, and so on what is read
        torch._dynamo.reset()
        trainer.compare(dtype=dtype, wrap=lambda model: torch.compile(model, backend=backend), keeps=False)


def max_autotune(trainer: Trainer) -> None:
    if not trainer.is_cuda:
        trainer.checks.notes.append("max-autotune is of a GPU")
        return
    trainer.compare(wrap=lambda model: torch.compile(model, mode="max-autotune"), keeps=False)


def checkpointing(trainer: Trainer) -> None:
    def recomputing(model: nn.Module) -> nn.Module:
        for block in model.blocks:
            block.forward = _recomputing(block)
        return model

    trainer.compare(prepare=recomputing, keeps=False)


def _recomputing(block: nn.Module) -> Callable[[Tensor], Tensor]:
    forward = block.forward
    return lambda values: checkpoint(forward, values, use_reentrant=False)


def streams(trainer: Trainer) -> None:
    """The second half of each batch goes through the model on another stream."""
    if not trainer.is_cuda:
        trainer.checks.notes.append("streams are of a GPU")
        return
    side = torch.cuda.Stream()

    def two(called: Any, ids: Tensor) -> Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            other = next_token_loss(called, ids[2:])
        mine = next_token_loss(called, ids[:2])
        torch.cuda.current_stream().wait_stream(side)
        return mine + other

    trainer.compare(two, keeps=False)


@contextlib.contextmanager
def one_rank(trainer: Trainer) -> Iterator[None]:
    """A process group of one rank: NCCL's on a GPU."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True)
    backend = "nccl" if trainer.is_cuda else "gloo"
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def ddp(trainer: Trainer) -> None:
    with one_rank(trainer):
        trainer.compare(wrap=lambda model: nn.parallel.DistributedDataParallel(model), keeps=False)


def fsdp2(trainer: Trainer) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with one_rank(trainer):
        mesh = init_device_mesh(trainer.device.type, (1,))

        def sharded(model: nn.Module) -> nn.Module:
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            return fully_shard(model, mesh=mesh)

        trainer.compare(prepare=sharded, keeps=False)


def cuda_graph(trainer: Trainer) -> None:
    """Forward and backward captured: said to be unobserved, or each replay is recorded as the same step run eagerly."""
    if not trainer.is_cuda:
        trainer.checks.notes.append("CUDA graphs are of a GPU; Triton's interpreter replays launches in test_fused.py")
        return
    plain, _ = graphed(trainer, None)
    silent, agent = graphed(trainer, {"run": "not asked for"})
    trainer.checks.equal(silent, plain, "losses of a graph that is not read")
    trainer.checks.that(agent["skipped"]["cuda_graph"] > 0, "what a graph has captured was not said to be unobserved")
    read, agent = graphed(trainer, {"cuda_graphs": True})
    trainer.checks.equal(read, plain, "losses of a graph that is read")
    trainer.checks.equal(agent["skipped"]["cuda_graph"], 0, "reads that were left out of the graph")
    observed = trainer.ingest.tensors()
    recorded: list[dict[Any, list[Tensor]]] = []
    trainer.losses(next_token_loss, lambda model: model, lambda model: model, None, False, None, recorded)
    for step, kept in enumerate(recorded):
        trainer.hold(observed, step + WARM_UP, kept)


WARM_UP = 3


def graphed(trainer: Trainer, attach_options: dict[str, Any] | None) -> tuple[list[float], dict[str, Any]]:
    """Losses of replayed steps, and what the agent says of itself. The steps are those of `Trainer.losses`."""
    torch.manual_seed(0)
    model = Gpt(**SIZES).to(trainer.device)
    begin = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    static = torch.zeros(4, 65, dtype=torch.int64, device=trainer.device)
    losses, stats = [], {}
    with contextlib.ExitStack() as stack:
        handle = None
        if attach_options is not None:
            trainer.begin()
            handle = stack.enter_context(
                rangewatch.attach(model, url=trainer.ingest.url, full_every=1, budget_percent=100, **attach_options)
            )
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                optimizer.zero_grad(set_to_none=False)
                next_token_loss(model, static).backward()
                if handle is not None:
                    handle.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for parameter in model.parameters():
                parameter.grad.zero_()
            loss = next_token_loss(model, static)
            loss.backward()
        model.load_state_dict(begin)
        generator = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            static.copy_(torch.randint(512, (4, 65), generator=generator))
            graph.replay()
            losses.append(loss.detach().clone())
            optimizer.step()
            if handle is not None:
                handle.step()
        if handle is not None:
            stats = handle.stats()
    graph.replay()  # after `detach` it still writes to rows, which must still be there
    torch.cuda.synchronize()
    return [each.item() for each in losses], stats


MODES = {
    each.__name__: each
    for each in (eager, autocast_fp16, compiled, max_autotune, checkpointing, streams, ddp, fsdp2, cuda_graph)
}


if __name__ == "__main__":
    sys.exit(main())
