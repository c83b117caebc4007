"""A run of many ranks as agents send it, for `rules.py`: tensors of all kinds, series, collectives, cards and events.

It is written through the real writer. `Trouble` says what goes wrong, from which step on.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rangewatch import statistics, wire
from rangewatch.statistics import balanced, weight_of
from rangewatch.wire.events import (
    CollectiveTiming,
    Dropouts,
    Environment,
    Mesh,
    MeshAxis,
    Optimizers,
    Placement,
    Placements,
    SampledWeights,
    Scaler,
    TiedWeight,
    event,
)
from rangewatch.wire.records import (
    Batch,
    Catalogue,
    RangeRows,
    RankInfo,
    Samples,
    SeriesRows,
    StreamHeader,
    TensorEntry,
)
from rangewatch_server.ingest.writer import Busy, Writer

Array = NDArray[Any]

KINDS = ("output", "grad_output", "grad", "output", "grad_output", "grad", "weight", "update")
MODULES = ("Linear", "ReLU", "LayerNorm", "GELU")
FULL_EVERY, BUCKETS, STEP_S, RANKS_A_HOST = 100, 6, 0.25, 8
IN_FLIGHT = 256
ODD = 0.7
"""Which rank has the trouble: of 1,024 that of number 716."""

NAN, STRAGGLER, EXPLODING = "NaN on one rank", "straggler", "exploding gradient"
TROUBLES = (NAN, STRAGGLER, EXPLODING)


class Trouble(NamedTuple):
    """What goes wrong from `step` on; `kind` is one of `TROUBLES`, or None for a healthy run."""

    kind: str | None = None
    step: int = 0


class LargeRun:
    """One run of `ranks` x `tensors`, of which `send` writes the next steps. `has_mesh`: its ranks stand on one of
    stages x 8 x 8 (`pp`, `dp`, `tp`), and say all that is compared along it; it takes a multiple of 64 ranks."""

    def __init__(self, ranks: int, tensors: int, *, has_mesh: bool = False) -> None:
        self.sizes = {"pp": ranks // 64, "dp": 8, "tp": 8} if has_mesh else {}
        self.ranks, self.tensors, self.step, self.sequence = ranks, tensors, 0, 0
        self.began_ns = time.time_ns()
        entries = tuple(
            TensorEntry(
                f"blocks.{at // 8}.{'ff' if at % 8 < 3 else 'attn'}", KINDS[at % 8], 0,
                "float16" if at % 8 in (0, 1, 3, 4) else "float32", (8, 512), at, MODULES[at // 8 % 4],
            )
            for at in range(tensors)
        )  # fmt: skip
        self.known = Catalogue(statistics.ALL, entries)
        self.digest = wire.catalogue_digest(self.known)
        self.size = np.array([[1e-3 if entry.kind == "update" else 1.0] for entry in entries])
        members = list(range(ranks))
        self.group = {
            "name": "0", "hash": hashlib.sha1(str(members).encode()).hexdigest(), "ranks": members, "desc": "world",
            "backend": "nccl", "instance": 0,
        }  # fmt: skip

    def open(self, writer: Writer) -> None:
        """Announce all ranks."""
        _drain(deque(_submit(writer, self._header(rank)) for rank in range(self.ranks)))

    def send(self, writer: Writer, steps: int, trouble: Trouble = Trouble()) -> None:  # noqa: B008 - a tuple
        """Write the next steps of all ranks, and wait until they are stored, in tiles too where they fill them."""
        waiting: deque[Future[Any]] = deque()
        for rank in range(self.ranks):
            waiting.append(_submit(writer, self._batch(rank, steps, trouble)))
            while len(waiting) > IN_FLIGHT:
                waiting.popleft().result()
        _drain(waiting)
        self.step, self.sequence = self.step + steps, self.sequence + 1
        while writer.memory.backlog or writer.memory.unmerged:
            time.sleep(0.02)

    def bodies(self, steps: int) -> list[bytes]:
        """The next steps of each rank, encoded, for who sends them over HTTP. The caller counts them."""
        return [wire.encode(self._batch(rank, steps, Trouble())) for rank in range(self.ranks)]

    def _header(self, rank: int) -> StreamHeader:
        host, local = f"host{rank // RANKS_A_HOST}", rank % RANKS_A_HOST
        info = RankInfo("large", rank, self.ranks, local, host, "a", self.began_ns, loss_scaled=True)
        return StreamHeader(info, self.known)

    def _batch(self, rank: int, steps: int, trouble: Trouble) -> Batch:
        at = np.arange(self.step, self.step + steps)
        is_odd = rank == int(ODD * self.ranks)
        random = np.random.default_rng((rank, self.step))
        columns = self._columns(at, random)
        if self.sizes:
            columns |= self._checksums(rank, at)
        if trouble.kind == NAN:
            bad = at[None, :] >= trouble.step + np.where(np.arange(self.tensors) >= self.tensors // 3, 0, 1)[:, None]
            if not is_odd:
                bad &= at[None, :] > trouble.step
            columns["nan_count"] = np.where(bad, 7.0, 0.0)
        if trouble.kind == EXPLODING:
            grown = 1.2 ** np.maximum(at - trouble.step, 0)
            is_grad = np.isin([entry.kind for entry in self.known.tensors], ("grad", "grad_output"))
            columns["amax"] = np.where(is_grad[:, None], columns["amax"] * grown, columns["amax"])
        late_s = np.where((at >= trouble.step) & (trouble.kind == STRAGGLER), 0.06, 0.0)
        return Batch(
            "large", rank, "a", self.sequence, self.digest, RangeRows(at, np.arange(self.tensors), columns),
            (*self._series(at, random, late_s if is_odd else late_s * 0, late_s, trouble), *self._of_mesh(rank, at)),
            (*self._events(rank), *self._places(rank)) if not self.sequence else (),
            samples=tuple(self._samples(rank, at, random, late_s * 0 if is_odd else late_s)), settled=self.sequence,
        )  # fmt: skip

    def _columns(self, at: Array, random: np.random.Generator) -> dict[str, Array]:
        shape = (self.tensors, len(at))
        amax = random.lognormal(0, 0.3, shape) * self.size
        amax = amax.astype(np.float32).astype(np.float64)
        columns = {
            "call_count": np.ones(shape), "numel": np.full(shape, 4_096.0), "amax": amax,
            "nan_count": np.zeros(shape), "inf_count": np.zeros(shape),
        }  # fmt: skip
        full = at % FULL_EVERY == 0
        if full.any():
            columns["full_numel"] = np.where(full, columns["numel"], 0.0)
            columns["amin"] = np.where(full, amax * 1e-6, np.inf)
            columns["zero_count"] = np.where(full, 3.0, np.zeros(shape))
            columns["subnormal_count"] = np.zeros(shape)
            columns["sum_sq"] = np.where(full, amax**2 * 400, 0.0)
        return columns

    def _series(
        self, at: Array, random: np.random.Generator, own_s: Array, late_s: Array, trouble: Trouble
    ) -> Iterator[SeriesRows]:
        noise = random.normal(1, 0.02, len(at))
        loss = 2 + np.exp(-at / 200) + random.normal(0, 0.05, len(at))
        if trouble.kind == NAN:
            loss = np.where(at >= trouble.step, np.nan, loss)
        skipped = ((at >= trouble.step) & (trouble.kind == NAN)).astype(float)
        values = {
            "loss": loss, "lr": np.full(len(at), 3e-4), "loss_scale": np.full(len(at), 65_536.0),
            "skipped_step": skipped, "found_inf": skipped, "step_time_s": STEP_S * noise + late_s,
            "data_wait_s": 0.002 * noise, "forward_s": 0.08 * noise + own_s, "backward_s": 0.14 * noise,
            "optimizer_s": 0.02 * noise, "other_s": 0.003 * noise, "exposed_comm_s": 0.005 * noise + late_s - own_s,
            "weights_written": np.zeros(len(at)), "sampled_update": 3e-4 * noise,
        }  # fmt: skip
        yield from (SeriesRows(name, at, each) for name, each in values.items())
        for every, name, each in (
            (8, "target_share", 0.1 * noise), (8, "target_class", at % 10.0), (32, "update_fraction", 1e-3 * noise),
            (32, "decay_fraction", 1e-5 * noise),
        ):  # fmt: skip
            chosen = at % every == 0
            if chosen.any():
                yield SeriesRows(name, at[chosen], each[chosen])

    def _place(self, rank: int) -> dict[str, int]:
        return {"pp": rank // 64, "dp": rank // 8 % 8, "tp": rank % 8}

    def _places(self, rank: int) -> Iterator[Any]:
        """Half of the parameters are the same along dp, half along dp and tp."""
        if not self.sizes:
            return
        strides = {"pp": 64, "dp": 8, "tp": 1}
        axes = tuple(
            MeshAxis(name, self.sizes[name], index, rank - index * strides[name], strides[name])
            for name, index in self._place(rank).items()
        )
        names = [entry.fqn for entry in self.known.tensors if entry.kind == "grad"]
        groups = (
            Placement({"dp": "replicate", "tp": "shard(0)"}, ("dp",)),
            Placement({"dp": "replicate", "tp": "replicate"}, ("dp", "tp")),
        )
        yield event(Mesh("Megatron", axes), self.began_ns, 0)
        if rank % 64 == 0:
            said = Placements(groups, {name: at % 2 for at, name in enumerate(names)}, len(names))
            yield event(said, self.began_ns, 0)
        yield event(TiedWeight("embed.weight", True), self.began_ns, 0)
        yield event(Dropouts(("blocks.0.dropout",), 100), self.began_ns, 0)

    def _checksums(self, rank: int, at: Array) -> dict[str, Array]:
        """Each parameter's at its turn once in 100 steps."""
        place = self._place(rank)
        rows = [row for row, entry in enumerate(self.known.tensors) if entry.kind == "grad"]
        checksum, balance = np.zeros((self.tensors, len(at))), np.zeros((self.tensors, len(at)))
        for nth, row in enumerate(rows):
            is_whole = nth % 2
            turn = (at % 100 == 100 * nth // len(rows)) | (at == 0)
            value = 4096.0 + 31 * at + 7919 * row + 104_729 * place["pp"] + (0 if is_whole else 977 * place["tp"])
            checksum[row] = np.where(turn, value, 0.0)
            size, index = (64, 8 * place["dp"] + place["tp"]) if is_whole else (8, place["dp"])
            balance[row] = np.where(turn, balanced(value, weight_of(size, index)), 0.0)
        return {"axis_checksum": checksum, "axis_balance": balance}

    def _of_mesh(self, rank: int, at: Array) -> Iterator[SeriesRows]:
        """What is compared at three steps in 100."""
        due = at[at % 100 < 3] if self.sizes else at[:0]
        if not len(due):
            return
        place, one = self._place(rank), np.ones(len(due))
        values = {
            "token_checksum": 1.0 + 7919.0 * due + 31.0 * place["dp"], "optimizer_steps": due + 1.0,
            "lr_group_0": 3e-4 * one, "lr_group_1": 1e-4 * one, "tied_checksum": 5.0 + due,
            "grad_sum_sq": one / self.ranks, "grad_local_sum_sq": one / 64, "grad_zero_count": 3.0 * one,
            "clipped_norm": one, "generator_checksum": 1.0 + 17.0 * due + 3.0 * place["dp"],
            "dropout_input_checksum": 1.0 + 11.0 * due + place["dp"],
            "dropout_output_checksum": 2.0 + 11.0 * due + place["dp"],
        }  # fmt: skip
        yield from (SeriesRows(name, due, each) for name, each in values.items())

    def _samples(self, rank: int, at: Array, random: np.random.Generator, wait_s: Array) -> Iterator[Samples]:
        count = len(at) * BUCKETS
        step, bucket = np.repeat(at, BUCKETS), np.tile(np.arange(BUCKETS), len(at))
        offset_ns = rank // RANKS_A_HOST * 3_600_000_000  # hosts' clocks differ
        times_ns = self.began_ns + offset_ns + (step * STEP_S * 1e9 + bucket * 2e7).astype(np.int64)
        duration_s = 0.004 + random.random(count) * 2e-4 + np.where(bucket == 0, np.repeat(wait_s, BUCKETS), 0.0)
        columns = {
            "step": step, "group": step * 0, "op": step * 0, "dtype": step * 0, "bytes": np.full(count, 2.5e7),
            "sequence": step * BUCKETS + bucket + 1, "duration_s": duration_s, "bucket": bucket,
            "is_symmetric": np.ones(count), "is_async": np.ones(count), "has_failed": np.zeros(count),
        }  # fmt: skip
        about = {"groups": [self.group], "ops": ["all_reduce"], "dtypes": ["float32"], "rung": "work"}
        yield Samples("collective", "", times_ns, {name: each * 1.0 for name, each in columns.items()}, about)
        seconds = np.unique((at * STEP_S).astype(np.int64))
        times_ns, one = self.began_ns + offset_ns + seconds * 10**9, np.ones(len(seconds))
        steps = np.minimum(seconds / STEP_S, at[-1])
        card = {
            "present": one, "step": steps, "temperature_c": 60 * one, "power_w": 400 * one, "sm_clock_mhz": 1_700 * one,
            "slowdown_margin_c": 25 * one, "throttle_reasons": 4 * one, "utilization_percent": 99 * one,
            "memory_used_bytes": 7e10 * one, "ecc_uncorrected_volatile": 0 * one, "remapped_rows_pending": 0 * one,
        }  # fmt: skip
        named = {"name": "NVIDIA H100 80GB HBM3", "device_index": rank % RANKS_A_HOST}
        yield Samples("gpu", f"GPU-{rank:08x}", times_ns, card, named)
        host = {"step": steps, "memory_available_bytes": 1e12 * one, "cpu_percent": 30 * one, "load_1m": 9 * one}
        yield Samples("host", "", times_ns, host, {"host": f"host{rank // RANKS_A_HOST}"})

    def _events(self, rank: int) -> Iterator[Any]:
        facts = {"python": {"version": "3.12"}, "torch": {"version": "2.13", "cuda": "13.0", "nccl": "2.28"}}
        details = (
            Optimizers(("AdamW",), trainable_count=24), Scaler("loss_scale", "GradScaler", 2_000.0, 2.0, 0.5),
            CollectiveTiming("work", "torch's own timing"), Environment(facts), SampledWeights(("h.0.bias",), True),
        )  # fmt: skip
        yield from (event(each, self.began_ns, 0, "") for each in details)


def _submit(writer: Writer, message: Any) -> Future[Any]:
    body = wire.encode(message)
    while True:
        try:
            return writer.submit(message, body)
        except Busy:
            time.sleep(0.01)


def _drain(waiting: deque[Future[Any]]) -> None:
    while waiting:
        waiting.popleft().result()
