"""The fused kernels: every statistic equal to numpy's, run by Triton's interpreter on CPU tensors in a process of its
own (Triton decides at its import); and compiled for GPUs that need not be here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rangewatch.core import limits
from rangewatch.recording.rows.device_ring import DeviceReader
from rangewatch.recording.rows.step_buffer import POSITIONS, StepBuffer
from rangewatch.statistics import exponents, fused, reduce
from rangewatch.statistics.fused import FORMATS, TIMED_STEPS, DeviceTime, FusedReads, Layout, layout_of, table_of
from tests.agent.doubles import own_buffer
from tests.agent.statistics.reference import statistics_of

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", FORMATS, ids=str)
SLOW = pytest.mark.slow
PATTERNS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


class TestHere:
    """What needs no interpreter."""

    __test__ = not IS_INTERPRETED

    @pytest.mark.parametrize("tier", ["not slow", pytest.param("slow", marks=SLOW)])
    def test_everything_else_in_the_interpreter(self, tier: str) -> None:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--noconftest",
            "-m",
            tier,
            str(Path(__file__)),
        ]
        environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert run.returncode == 0 and " passed" in run.stdout, run.stdout + run.stderr

    @SLOW
    @pytest.mark.parametrize("capability", [80, 90, 100])
    @pytest.mark.parametrize("kernel", ["measure", "measure_parts", "count_exponents"])
    def test_bfloat16_compiles_for_each_gpu(self, kernel: str, capability: int) -> None:
        assert "ld.global.v4.b32" in compiled(kernel, torch.bfloat16, capability)  # 16 bytes a thread

    @pytest.mark.parametrize(
        "dtype", [dtype if dtype is torch.float64 else pytest.param(dtype, marks=SLOW) for dtype in FORMATS], ids=str
    )
    def test_every_dtype_compiles_and_reads_wide(self, dtype: torch.dtype) -> None:
        load = {8: "v2.b64", 4: "v4.b32", 2: "v4.b32", 1: "v2.b32"}[dtype.itemsize]
        for kernel in ("measure", "count_exponents"):
            assembly = compiled(kernel, dtype, 90)
            assert f"ld.global.{load}" in assembly
            assert ".ftz" not in assembly, "subnormals would be zeros"

    @pytest.mark.parametrize(
        ("is_dense", "is_aligned"),
        [(False, False), pytest.param(True, False, marks=SLOW), pytest.param(False, True, marks=SLOW)],
    )
    def test_odd_layouts_compile(self, is_dense: bool, is_aligned: bool) -> None:
        assert "ld.global" in compiled("measure", torch.bfloat16, 90, IS_DENSE=is_dense, IS_ALIGNED=is_aligned)

    def test_one_compilation_serves_every_shape(self, launches: list[tuple[Any, ...]]) -> None:
        """Under a driver that compiles for a GPU and only notes what it is asked to launch."""
        from rangewatch.statistics import fused_kernels

        reads = FusedReads(CPU)
        reads.why_not, reads._kernels, reads._programs, reads._stream = "", fused_kernels, 1000, lambda: 77
        tensors = [torch.ones(count, dtype=torch.float16) for count in (1, 16, 17, 8192, 100_000, 1 << 20)]
        for tensor in tensors:
            assert reads.read(1 << 40, tensor), reads.why_not
        huge = torch.ones(1, dtype=torch.float16).expand(1 << 40)
        assert reads.read(1 << 40, huge)
        assert [launch[0] for launch in launches] == [1, 1, 1, 1, 12, 128, 1]
        assert {launch[1:4] for launch in launches} == {(1, 1, 77)}
        assert [launch[9:14] for launch in launches[:6]] == [
            (tensor.data_ptr(), tensor.numel(), 1, 1 << 40, 0) for tensor in tensors
        ]
        assert launches[6][10:12] == (1, 1 << 40)
        assert len(fused_kernels.measure.device_caches[0][0]) == 1 and reads._is_thin
        assert reads.read_many([(1 << 41, tensor) for tensor in tensors]) == []
        assert launches[7][0] == 1 + 1 + 1 + 1 + 2 + 16  # parts of 65,536

    @pytest.fixture
    def launches(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
        import triton
        from triton.backends.compiler import GPUTarget

        from rangewatch.statistics import fused_kernels

        launches: list[tuple[Any, ...]] = []

        class NoLauncher:
            def __init__(self, *args: Any) -> None:
                pass

            def __call__(self, *args: Any) -> None:
                launches.append(args)

        class NoDriver:
            launcher_cls, utils = NoLauncher, property(lambda self: self)

            def get_current_device(self) -> int:
                return 0

            def get_current_stream(self, device: int) -> int:
                return 77

            def get_current_target(self) -> Any:
                return GPUTarget("cuda", 90, 32)

            def get_device_properties(self, device: int) -> dict[str, int]:
                return {"max_shared_mem": 1 << 17}

            def load_binary(self, *args: Any) -> tuple[Any, ...]:
                return object(), 1, 64, 0, 1024

        for kernel in (fused_kernels.measure, fused_kernels.measure_parts):
            monkeypatch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
        monkeypatch.setattr(triton.runtime.driver, "_active", NoDriver())
        return launches

    def test_a_cpu_keeps_torchs_operations(self) -> None:
        reads = FusedReads(CPU)
        assert reads.why_not == "on a CPU" and not reads.read(0, torch.ones(3))
        assert reads.read_many([(0, torch.ones(3))]) == [0]

    def test_without_triton_the_reason_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import rangewatch.statistics

        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setitem(sys.modules, "triton", None)
        monkeypatch.delitem(sys.modules, "rangewatch.statistics.fused_kernels", raising=False)
        monkeypatch.delattr(rangewatch.statistics, "fused_kernels", raising=False)
        why_not, row = read_by_reader(torch.tensor([1.0, -2.0]))
        assert "triton" in why_not and row["amax"] == 2.0

    def test_what_was_compiled_for_a_gpu_does_not_run_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import triton  # noqa: F401 - before it is told

        monkeypatch.setenv("TRITON_INTERPRET", "1")  # too late: Triton has been imported
        why_not, row = read_by_reader(torch.tensor([1.0, -2.0]))
        assert why_not == "Triton's interpreter is off" and row["amax"] == 2.0

    def test_a_table_has_every_element_once(self) -> None:
        batch = np.array([[1000, 10, 1, 7], [5000, 3, 2, 8], [9000, 8, 1, 9], [1 << 46, (1 << 33) + 1, 1, 5]], np.int64)
        parts = table_of(batch[:3], 4, 2).tolist()
        assert parts[:3] == [[1000, 4, 1, 7], [1008, 4, 1, 7], [1016, 2, 1, 7]]
        assert parts[3:] == [[5000, 3, 2, 8], [9000, 4, 1, 9], [9008, 4, 1, 9]]
        huge = table_of(batch[3:], 1 << 16, 2)
        assert huge[:, 1].sum() == (1 << 33) + 1 and huge[-1].tolist() == [(1 << 46) + (1 << 34), 1, 1, 5]

    @settings(max_examples=25)
    @given(st.data())
    def test_a_layout_has_every_element_as_often_as_the_tensor(self, data: st.DataObject) -> None:
        shown = strange(torch.arange(720), data.draw)  # each element is its own place
        layout = layout_of(shown)
        if layout is not None:
            places = torch.arange(layout.numel)
            if not layout.is_dense:
                rows, within = places // layout.inner, places % layout.inner
                places = rows * layout.outer_stride + within * layout.inner_stride
            found = (places + shown.storage_offset()).repeat(layout.repeats)
            assert torch.equal(found.sort().values, shown.flatten().sort().values)

    def test_what_is_dense_and_what_is_too_much(self) -> None:
        whole = torch.ones(4, 6, 4)
        assert layout_of(whole.permute(2, 0, 1)) == Layout(96, 1)
        assert layout_of(whole[:, :, 1:3]) == Layout(48, 1, 2, 4, 1, False)
        assert layout_of(whole[:1].expand(5, 6, 4)) == Layout(24, 5)
        assert layout_of(whole[::2, ::2, ::3]) is None
        assert layout_of(torch.ones(1).as_strided((1 << 20, 1 << 12), (0, 0))) == Layout(1, 1 << 32)

    def test_time_is_taken_when_the_device_is_done(self) -> None:
        clock, now = DeviceTime(lambda: Event(now)), Now()
        for step in range(2):
            for _ in range(3):
                clock.time(lambda: now.pass_ms(5.0))
            clock.end_step(step)
            now.pass_ms(100.0)  # the training's own work
        assert clock.take() == {}
        now.done_ms = 20.0
        assert clock.take() == {0: (0.015, True)}
        now.done_ms = 1000.0
        assert clock.take() == {1: (0.015, True)} and clock.take() == {}
        clock.time(lambda: now.pass_ms(5.0))
        now.done_ms = 2000.0
        clock.end_step(2)  # the device has done all that there was to read
        assert clock.take() == {2: (0.005, False)}

    def test_timing_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rangewatch.statistics.fused.TIMED_READS", 2)
        now = Now()
        clock = DeviceTime(lambda: Event(now))
        for step in range(20):
            for _ in range(10):
                clock.time(lambda: now.pass_ms(1.0))
            clock.end_step(step)
        now.done_ms = 1e9
        assert clock.take() == dict.fromkeys(range(20 - TIMED_STEPS, 20), (0.01, True))
        made = now.events
        for step in range(TIMED_STEPS):
            clock.time(lambda: now.pass_ms(1.0))
            clock.end_step(step)
        assert now.events == made  # used again


class Now:
    """A device's clock: what is queued takes its time at once, and is done when the test says so."""

    def __init__(self) -> None:
        self.ms, self.done_ms, self.events = 0.0, 0.0, 0

    def pass_ms(self, duration_ms: float) -> None:
        self.ms += duration_ms


class Event:
    """Like torch.cuda.Event, of a `Now`."""

    def __init__(self, now: Now) -> None:
        self.now, self.at_ms = now, -1.0
        now.events += 1

    def record(self) -> None:
        self.at_ms = self.now.ms

    def query(self) -> bool:
        return self.at_ms <= self.now.done_ms

    def elapsed_time(self, later: Event) -> float:
        assert self.query() and later.query() and self.at_ms >= 0, "not complete"
        return later.at_ms - self.at_ms


def compiled(kernel: str, dtype: torch.dtype, capability: int, **constants: bool) -> str:
    """PTX; raises when the kernel does not compile for this compute capability."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rangewatch.statistics import fused_kernels

    function = getattr(fused_kernels, kernel)
    signature = {name: "constexpr" if name.isupper() else "i64" for name in function.arg_names}
    values = {"IS_DENSE": True, "IS_ALIGNED": True, "FORMAT": FORMATS[dtype], **constants}
    source = ASTSource(function, signature, {name: values[name] for name in signature if name.isupper()})
    target = GPUTarget("cuda", capability, 32)
    return str(triton.compile(source, target=target, options=fused._OPTIONS).asm["ptx"])


def strange(tensor: Tensor, draw: Callable[[Any], Any]) -> Tensor:
    """A view of a tensor with 720 elements: permuted, sliced, selected, expanded."""
    shown = tensor.reshape(draw(st.sampled_from([(720,), (24, 30), (6, 10, 12), (2, 3, 8, 15)])))
    for dim in range(shown.dim()):
        first, step = draw(st.integers(0, 1)), draw(st.integers(1, 3))
        if draw(st.booleans()):
            shown = shown[(slice(None),) * dim + (slice(first, None, step),)]
    shown = shown.permute(draw(st.permutations(range(shown.dim()))))
    if draw(st.booleans()):
        shown = shown.narrow(0, 0, 1).expand(draw(st.integers(1, 4)), *shown.shape[1:])
    return shown[..., None] if draw(st.booleans()) else shown


def some(*quick: torch.dtype) -> list[Any]:
    """All dtypes, of which the others are slow."""
    return [dtype if dtype in quick else pytest.param(dtype, marks=SLOW) for dtype in FORMATS]


def read_by_reader(*tensors: Tensor) -> tuple[str, dict[str, float]]:
    """Why not by the kernels, and the row that a `DeviceReader` makes of the tensors."""
    buffer = own_buffer()
    buffer.row.grow()
    reader = DeviceReader(buffer.row)
    for tensor in tensors:
        reader.read(0, tensor)
    buffer.close(0)
    reader.end_step()
    block = buffer.take()
    for copy in reader.take(1):
        copy.merge_into(block, POSITIONS)
    return reader.why_not_fused()["cpu"], {name: block.rows[at][0, 0].item() for name, at in POSITIONS.items()}


class TestInterpreted:
    """What runs the kernels."""

    __test__ = IS_INTERPRETED
    pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

    @pytest.fixture
    def reads(self) -> FusedReads:
        return FusedReads(CPU)

    @pytest.mark.parametrize(
        "dtype",
        [dtype if dtype.itemsize == 1 else pytest.param(dtype, marks=SLOW) for dtype in FORMATS if dtype.itemsize <= 2],
        ids=str,
    )
    def test_every_bit_pattern(self, reads: FusedReads, dtype: torch.dtype) -> None:
        patterns = PATTERNS[dtype.itemsize]
        info = torch.iinfo(patterns)
        whole = torch.arange(info.min, info.max + 1, dtype=torch.int32).to(patterns).view(dtype)
        check(reads, whole)
        check_exponents(reads, whole)

    @DTYPES
    def test_the_ends_of_the_range(self, reads: FusedReads, dtype: torch.dtype) -> None:
        check(reads, special(dtype))

    @SLOW
    @DTYPES
    def test_each_end_alone(self, reads: FusedReads, dtype: torch.dtype) -> None:
        values = special(dtype)
        for value in values[values.double() >= 0][1:]:
            check(reads, value)

    @pytest.mark.parametrize("values", [[], [float("nan")], [float("inf")]], ids=str)
    @pytest.mark.parametrize("dtype", some(torch.float64, torch.bfloat16), ids=str)
    def test_nothing_finite_or_nothing_but_zeros(
        self, reads: FusedReads, dtype: torch.dtype, values: list[float]
    ) -> None:
        check(reads, torch.tensor([*values, *values, 0.0, -0.0] if not values else values * 5).to(dtype))

    @pytest.mark.parametrize(
        "tiles", [pytest.param(tiles, marks=[] if tiles == 1.01 else SLOW) for tiles in (0.5, 1.0, 1.01, 3.0, 9.37)]
    )
    @pytest.mark.parametrize("dtype", some(torch.float64, torch.float16, torch.float8_e5m2), ids=str)
    def test_any_size(self, reads: FusedReads, dtype: torch.dtype, tiles: float) -> None:
        form = FORMATS[dtype]
        tensor = random(int(tiles * form.lanes * form.unroll), dtype)
        tensor[-1], tensor[-2] = 0.0, tensor[-3]
        check(reads, tensor)

    @pytest.mark.parametrize("place", [-1, pytest.param(5000, marks=SLOW)])
    def test_only_the_program_that_met_it_looks_again(self, reads: FusedReads, place: int) -> None:
        tensor = random(40_000, torch.float32)
        tensor[place], tensor[17] = float("nan"), -float("inf")
        check(reads, tensor)

    @SLOW
    @pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-30, 1e-22, 1e-10, 1e10, 1e12, 1e19, 1e30, 1e37])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
    def test_squares_at_any_scale(self, reads: FusedReads, dtype: torch.dtype, scale: float) -> None:
        check(reads, (random(9000, torch.float64) * scale).to(dtype))

    @pytest.mark.parametrize("scale", [1e-30, 1e30])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_squares_of_few_at_a_scale(self, reads: FusedReads, dtype: torch.dtype, scale: float) -> None:
        check(reads, (random(900, torch.float64) * scale).to(dtype))

    def test_a_layout_of_each_kind(self, reads: FusedReads) -> None:
        tensor = random(10 * 60, torch.bfloat16).reshape(10, 60)
        tensor[3, 3], tensor[7, 1], tensor[9, 59], tensor[0, 5] = float("nan"), float("inf"), 0.0, 1e-40
        permuted, gapped, repeated = tensor.t(), tensor[1:, 1::3], tensor[:1].expand(50, 60)
        overlapping, copied = tensor.flatten().as_strided((50, 8), (3, 1)), tensor.reshape(5, 2, 60)[::2, :, ::3]
        for shown in (permuted, gapped, repeated, overlapping, copied):
            check(reads, shown)

    @SLOW
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
    def test_layouts(self, reads: FusedReads, dtype: torch.dtype) -> None:
        tensor = random(100 * 60, dtype).reshape(100, 60)
        tensor[3, 3], tensor[7, 1], tensor[99, 59], tensor[0, 5] = float("nan"), float("inf"), 0.0, 1e-40
        cube = tensor.reshape(10, 10, 60)
        flat = tensor.flatten()
        dense = tensor.t(), cube.permute(1, 2, 0), tensor[1], flat[1:]
        gapped = tensor[:, ::3], tensor[::2], tensor[1:, 1:], flat[::7], cube[::2, ::3, ::2], cube[:, 1:, :7]
        repeated = tensor[:1].expand(50, 60), tensor[:, :1].expand(100, 7), tensor[3, 3].expand(9, 9)
        both = flat.as_strided((50, 8), (3, 1)), cube[:, :1, ::2].expand(10, 4, 30)
        for shown in (*dense, *gapped, *repeated, *both):
            check(reads, shown)

    def test_a_lazy_negative(self, reads: FusedReads) -> None:
        values = torch.view_as_complex(random(64, torch.float32).reshape(32, 2)).conj().imag
        assert values.is_neg()
        check(reads, values)

    def test_large_pieces_are_copied_in_turn(self, reads: FusedReads, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "DEVICE_BLOCK_ELEMENTS", 50)
        check(reads, random(1000, torch.bfloat16).reshape(10, 10, 10)[::2, ::2, ::3])

    def test_calls_merge_in_one_row(self, reads: FusedReads) -> None:
        calls = [random(5000, torch.float16), special(torch.float16), random(3, torch.float16) * 100]
        rows = new_rows(1)
        assert all(reads.read(rows.data_ptr(), tensor) for tensor in calls)
        assert_equal(rows[0], calls)

    def test_rows_beside_are_left_alone(self, reads: FusedReads) -> None:
        rows = new_rows(3)
        before = rows.clone()
        assert reads.read(rows[1].data_ptr(), special(torch.float32))
        assert torch.equal(rows[::2], before[::2]) and not torch.equal(rows[1], before[1])

    def test_many_are_as_each(self, reads: FusedReads, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fused, "_PART_TILES", 1)
        launches: list[str] = []
        launch = reads._launch
        monkeypatch.setattr(reads, "_launch", lambda name, *rest: (launches.append(name), launch(name, *rest))[1])
        tensors = [random(9000, torch.bfloat16), special(torch.bfloat16), random(7, torch.float32)]
        tensors += [
            random(5000, torch.float32),
            special(torch.float32)[1:],
            random(60, torch.float32).reshape(6, 10).t(),
        ]
        tensors += [random(60, torch.float32).reshape(6, 10)[:, ::3], torch.ones(1).expand(2, 3)]
        rows = new_rows(len(tensors) + 1)
        places = [(rows[index].data_ptr(), tensor) for index, tensor in enumerate(tensors)]
        assert reads.read_many([*places, (rows[-1].data_ptr(), tensors[0]), (rows[-1].data_ptr(), tensors[1])]) == []
        for row, tensor in zip(rows, tensors, strict=False):
            assert_equal(row, [tensor])
        assert_equal(rows[-1], tensors[:2])
        assert launches == ["measure", "measure", "measure_parts", "measure_parts"]  # two lie oddly

    @DTYPES
    def test_exponents_of_every_kind_of_value(self, reads: FusedReads, dtype: torch.dtype) -> None:
        of_each_byte = np.random.default_rng(0).integers(0, 256, 4099 * dtype.itemsize, np.uint8)
        for tensor in (torch.from_numpy(of_each_byte).view(dtype), special(dtype), torch.zeros(3).to(dtype)):
            check_exponents(reads, tensor)

    def test_exponents_of_a_layout_of_each_kind(self, reads: FusedReads) -> None:
        tensor = random(10 * 60, torch.bfloat16).reshape(10, 60)
        gapped, odd, repeated = tensor[1:, 1::3], tensor.flatten()[1:], tensor[:1].expand(50, 60)
        for shown in (tensor.t(), gapped, odd, repeated, tensor.reshape(5, 2, 60)[::2, :, ::3], tensor[0, 0]):
            check_exponents(reads, shown)

    @SLOW
    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_exponents_of_any_bits_in_any_layout(self, data: st.DataObject) -> None:
        dtype = data.draw(st.sampled_from(list(FORMATS)))
        raw = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))).integers(
            0, 256, 720 * dtype.itemsize, np.uint8
        )
        check_exponents(FusedReads(CPU), strange(torch.from_numpy(raw).view(dtype), data.draw))

    def test_exponents_that_do_not_compile_leave_the_rest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from rangewatch.statistics import fused_kernels

        monkeypatch.setattr(fused_kernels, "count_exponents", {})
        reader, buffer = reader_and_buffer()
        reader.counts_exponents = True
        reader.read(0, torch.tensor([1.0, 3.0]))
        reader.read_many([(0, torch.tensor([-2.0, 0.0]))])
        assert reader.why_not_fused() == {"cpu": ""}
        buffer.close(0)
        block = buffer.take()
        reader.end_step()
        (copy,) = reader.take(1)
        copy.merge_into(block, POSITIONS)
        (sums,) = block.sums.values()
        assert (sums.positions + exponents.FIRST).tolist() == [0, 1] and sums.values.tolist() == [[1, 2]]

    def test_what_a_graph_has_captured_is_observed_at_each_replay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A capture queues no work, and a replay is the same launches again: here as the interpreter runs them."""
        graph: list[tuple[Any, ...]] = []
        launch, captured = FusedReads._launch, torch.zeros(60)

        def capturing(self: FusedReads, name: str, *rest: Any, **options: Any) -> bool:
            if options.get("compiles", True):
                return launch(self, name, *rest)
            graph.append((self, name, *rest))
            return (name, *rest[2]) in self._compiled

        monkeypatch.setattr(FusedReads, "_launch", capturing)
        reader, buffer = reader_and_buffer(reads_graphs=True)
        assert not reader.capture(0, captured), "nothing was read before"
        reader.read(0, captured)
        assert not reader.capture(0, captured.half()), "no such kernel was compiled"
        graph.clear()
        assert reader.capture(0, captured) and reader.capture(1, captured[:7])
        for step, fills in enumerate([[], [3.0, float("nan")], [], [2.0]]):
            for value in fills:
                captured.fill_(value)
                for each in graph:
                    assert launch(*each)
            buffer.close(step)
            reader.end_step()
        block = buffer.take()
        (copy,) = reader.take(2)
        copy.merge_into(block, POSITIONS)
        read = {name: block.rows[POSITIONS[name]].tolist() for name in ("call_count", "numel", "full_numel", "amax")}
        assert read["call_count"] == [[1, 0], [2, 2], [0, 0], [1, 1]]
        assert read["numel"] == read["full_numel"] == [[60, 0], [120, 14], [0, 0], [60, 7]]
        assert read["amax"] == [[0, 0], [3, 3], [0, 0], [2, 2]]
        assert block.rows[POSITIONS["nan_count"]].tolist() == [[0, 0], [60, 7], [0, 0], [0, 0]]
        assert block.rows[POSITIONS["amin"]][3].tolist() == [2, 2]

    def test_there_is_an_end_to_the_rows_of_graphs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "GRAPH_TENSORS", 2)
        reader, _ = reader_and_buffer(reads_graphs=True)
        reader.read(0, torch.ones(3))
        assert [reader.capture(number, torch.ones(3)) for number in (5, 9, 7, 5)] == [True, True, False, True]

    def test_what_has_no_format_is_left(self, reads: FusedReads) -> None:
        odd, plain = torch.ones(4).to(torch.float8_e4m3fnuz), torch.ones(4)
        rows = new_rows(1)
        row = rows.data_ptr()
        assert not reads.read(row, odd) and not reads.read(row, torch.ones(4, device="meta"))
        assert reads.read_many([(row, plain), (row, odd)]) == [1]
        why_not, merged = read_by_reader(plain, plain * 3)
        assert why_not == "" and merged["amax"] == 3.0 and merged["sum_sq"] == 40.0

    def test_what_does_not_compile_goes_to_torch(self, reads: FusedReads, monkeypatch: pytest.MonkeyPatch) -> None:
        from rangewatch.statistics import fused_kernels

        calls: list[int] = []

        class DoesNotCompile:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                calls.append(grid[0])
                raise RuntimeError("ptxas fatal")

        DoesNotCompile.__name__ = "InterpretedFunction"
        monkeypatch.setattr(fused_kernels, "measure", DoesNotCompile())
        why_not, row = read_by_reader(torch.tensor([1.0, -2.0]), torch.tensor([5.0]))
        assert why_not == "RuntimeError: ptxas fatal" and len(calls) == 1
        assert row["amax"] == 5.0 and row["sum_sq"] == 30.0 and row["call_count"] == 2.0

    def test_another_releases_arguments(self, reads: FusedReads) -> None:
        class OtherArguments:
            function = packed_metadata = None

            def run(self, *args: Any) -> None:
                raise TypeError("function takes exactly 7 arguments")

        check(reads, torch.ones(3))
        reads._compiled = dict.fromkeys(reads._compiled, OtherArguments())
        check(reads, torch.ones(3))
        assert not reads._is_thin and not reads.why_not

    @settings(max_examples=6, deadline=None)  # run without the tests' conftest
    @given(st.data())
    def test_any_bits_in_any_layout(self, data: st.DataObject) -> None:
        self.any_bits(data)

    @SLOW
    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_any_bits_in_any_layout_many_times(self, data: st.DataObject) -> None:
        self.any_bits(data)

    @staticmethod
    def any_bits(data: st.DataObject) -> None:
        dtype = data.draw(st.sampled_from(list(FORMATS)))
        seed = data.draw(st.integers(0, 2**32 - 1))
        raw = np.random.default_rng(seed).integers(0, 256, 720 * dtype.itemsize, np.uint8)
        tensor = torch.from_numpy(raw).view(dtype)
        check(FusedReads(CPU), strange(tensor, data.draw))


def reader_and_buffer(*, reads_graphs: bool = False) -> tuple[DeviceReader, StepBuffer]:
    """Of two tensors."""
    buffer = own_buffer()
    for _ in range(2):
        buffer.row.grow()
    return DeviceReader(buffer.row, reads_graphs=reads_graphs), buffer


def check_exponents(reads: FusedReads, tensor: Tensor) -> None:
    """Its histogram is that of the host, and so is the one by torch's operations."""
    expected = reduce.full_set(tensor, histogram=True).exponents
    row = torch.zeros(exponents.BINS, dtype=torch.int64)
    assert reads.count_exponents(row.data_ptr(), tensor), reads.why_no_exponents
    assert np.array_equal(row.numpy(), expected) and np.array_equal(reduce.count_exponents(tensor).numpy(), expected)


def new_rows(count: int) -> Tensor:
    rows = torch.empty(count, len(reduce.COLUMNS), dtype=torch.float64)
    reduce.fill_identities(rows)
    return rows


def check(reads: FusedReads, tensor: Tensor) -> None:
    """Its row is what numpy says."""
    rows = new_rows(1)
    assert reads.read(rows.data_ptr(), tensor), reads.why_not
    assert_equal(rows[0], [tensor])


def assert_equal(row: Tensor, tensors: list[Tensor]) -> None:
    with np.errstate(over="ignore"):
        expected = statistics_of([tensor.resolve_neg() for tensor in tensors])
    for name, value in zip(reduce.COLUMNS, row.tolist(), strict=True):
        rtol = 1e-6 if name == "sum_sq" else 0.0  # float32 over the elements of a tile, float64 from there
        assert value == expected[name] or abs(value - expected[name]) <= rtol * expected[name], (name, value, expected)


def random(numel: int, dtype: torch.dtype) -> Tensor:
    """Normal values, some of them zero."""
    values = torch.randn(numel, dtype=torch.float64, generator=torch.Generator().manual_seed(numel))
    return torch.where(values.abs() < 0.05, 0.0, values).to(dtype)


def special(dtype: torch.dtype) -> Tensor:
    """Both zeros, the ends of the subnormal and the normal range, Inf and NaN, of either sign."""
    info = torch.finfo(dtype)
    steps = info.smallest_normal * info.eps
    values = [0.0, steps, 3 * steps, info.smallest_normal - steps, info.smallest_normal, 1.0, info.max, float("inf")]
    whole = torch.tensor([*values, *(-value for value in values), float("nan")], dtype=torch.float64)
    return whole.to(dtype)
