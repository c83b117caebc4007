"""What needs a GPU: the kernels on real memory, a whole step that never waits, graphs, streams and events."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rangewatch
from rangewatch.recording.rows.device_ring import DeviceReader
from rangewatch.recording.rows.step_buffer import POSITIONS
from rangewatch.statistics import exponents, fused, reduce
from rangewatch.statistics.fused import FORMATS, DeviceCost, FusedReads
from tests.agent.doubles import own_buffer
from tests.agent.ingest_double import IngestDouble
from tests.agent.statistics.reference import KeepEverything, assert_recorded, statistics_of

# Torch warns once, when it is first asked to raise where the host waits, that the mode is a prototype.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, values: Tensor) -> Tensor:
        normed = self.norm(values)
        values = values + self.attention(normed, normed, normed, need_weights=False)[0]
        return values + self.mlp(values)


class Gpt(nn.Module):
    """A small one: embeddings, blocks, and a head that shares the embedding's weight."""

    def __init__(self, vocabulary: int = 101, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


@pytest.fixture
def reads() -> FusedReads:
    reads = FusedReads(torch.device("cuda", torch.cuda.current_device()))
    assert reads.why_not == ""
    return reads


@pytest.fixture
def no_synchronisation() -> Iterator[None]:
    """Torch raises where the host would wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_step_of_a_gpt_is_recorded_as_it_was(ingest: IngestDouble, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Gpt().cuda()
    reference = KeepEverything(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kept = {}
    with rangewatch.attach(model, optimizer, url=ingest.url) as handle:
        for step in range(3):
            tokens = torch.randint(0, 101, (4, 33), device="cuda")
            with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
                loss = loss_of(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept[step] = {key: [tensor.cpu() for tensor in tensors] for key, tensors in reference.kept.items()}
            reference.clear()
        assert handle._agent is not None
        reader = handle._agent.observer.device
        assert set(reader.why_not_fused().values()) == {""}
    # Attention logits are worked out by the agent: no hook of the reference sees them.
    recorded = {key: steps for key, steps in ingest.tensors().items() if not key[0].endswith(" attention logits")}
    for step, tensors in kept.items():
        assert_recorded(with_coarse_squares(recorded, tensors), step, tensors)


def with_coarse_squares(recorded: dict[Any, Any], kept: dict[Any, list[Tensor]]) -> dict[Any, Any]:
    """`sum_sq` is summed in float32 over a tile: where it is right within 1e-6, numpy's takes its place."""
    for key, tensors in kept.items():
        exact = statistics_of(tensors)["sum_sq"]
        for cell in recorded[key].values():
            if abs(cell["sum_sq"] - exact) <= 1e-6 * exact:
                cell["sum_sq"] = exact
    return recorded


def test_a_step_never_waits_for_the_device(ingest: IngestDouble) -> None:
    model = Gpt().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    tokens = torch.randint(0, 101, (4, 33), device="cuda")
    optimizer.zero_grad()  # builds what it builds once
    with rangewatch.attach(
        model, optimizer, scaler=scaler, url=ingest.url, kinds=["output", "grad_output", "grad", "weight"]
    ):
        for step in range(6):
            torch.cuda.set_sync_debug_mode("error" if step else "default")  # the first compiles and loads kernels
            try:
                with torch.autocast("cuda", torch.float16):
                    loss = loss_of(model, tokens)
                scaler.scale(loss).backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            scaler.step(optimizer)  # reads found_inf on the host, as it does without us
            torch.cuda.set_sync_debug_mode("error" if step else "default")
            try:
                scaler.update()  # our end of the step, with loss_scale and found_inf from the device
            finally:
                torch.cuda.set_sync_debug_mode("default")
            optimizer.zero_grad()
    assert ingest.series("loss_scale") == dict.fromkeys(range(6), 1024.0)
    assert ingest.series("skipped_step") == dict.fromkeys(range(6), 0.0)


def test_an_overflow_is_seen_and_the_step_skipped(ingest: IngestDouble) -> None:
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16)
    with rangewatch.attach(model, optimizer, scaler=scaler, url=ingest.url):
        for factor in (1.0, 1e38):
            scaler.scale(model(torch.ones(2, 4, device="cuda")).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert ingest.series("skipped_step") == {0: 0.0, 1: 1.0}
    assert ingest.tensors()["weight", "grad", 0][1]["inf_count"] == 16


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_every_dtype_and_layout(reads: FusedReads, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    tensor = torch.randn(3000, 700, device="cuda", generator=generator).to(dtype)
    tensor[3, 3], tensor[7, 1], tensor[-1, -1], tensor[0, 5] = float("nan"), float("inf"), 0.0, 1e-40
    cube = tensor.reshape(300, 10, 700)
    views = tensor, tensor.t(), tensor[:, ::3], tensor[1:, 1:], tensor.flatten()[1:], cube[::2, ::3, ::2]
    views += tensor[:1].expand(50, 700), cube.permute(1, 2, 0), tensor[3, 3].expand(9, 9), tensor[:2, :3]
    rows = torch.empty(len(views), len(reduce.COLUMNS), dtype=torch.float64, device="cuda")
    reduce.fill_identities(rows)
    many = rows.clone()
    for row, view in zip(rows, views, strict=True):
        assert reads.read(row.data_ptr(), view), reads.why_not
    assert reads.read_many([(row.data_ptr(), view) for row, view in zip(many, views, strict=True)]) == []
    for found in (rows.cpu(), many.cpu()):
        for row, view in zip(found, views, strict=True):
            expected = statistics_of([view.cpu()])
            for name, value in zip(reduce.COLUMNS, row.tolist(), strict=True):
                rtol = 1e-6 if name == "sum_sq" else 0.0
                assert value == expected[name] or abs(value - expected[name]) <= rtol * expected[name], (
                    name,
                    view.shape,
                )


def test_offsets_beyond_32_bits(reads: FusedReads) -> None:
    numel = (1 << 32) + 5
    if torch.cuda.mem_get_info()[0] < numel + (1 << 30):
        pytest.skip("needs 5 GiB of device memory")
    tensor = torch.zeros(numel, dtype=torch.uint8, device="cuda").view(torch.float8_e5m2)
    tensor.view(torch.uint8)[-1], tensor.view(torch.uint8)[-2] = 0x7C, 0x3C  # Inf and 1.0
    rows = torch.empty(2, len(reduce.COLUMNS), dtype=torch.float64, device="cuda")
    reduce.fill_identities(rows)
    assert reads.read(rows[0].data_ptr(), tensor) and reads.read_many([(rows[1].data_ptr(), tensor)]) == []
    assert rows.tolist() == [[1.0, 1.0, 0.0, 1.0, numel - 2, 0.0, 1.0]] * 2


def test_the_kernel_says_what_torchs_operations_say(reads: FusedReads) -> None:
    values = torch.randn(1 << 20, device="cuda", dtype=torch.bfloat16)
    row = torch.empty(1, len(reduce.COLUMNS), dtype=torch.float64, device="cuda")
    reduce.fill_identities(row)
    reads.read(row.data_ptr(), values)
    torch.testing.assert_close(row[0], reduce.measure(values, torch.float64), rtol=1e-6, atol=0.0)


def test_a_launch_does_not_wait(reads: FusedReads, no_synchronisation: None) -> None:
    """The device is kept busy; were a read to wait for it, its event would be complete when the read returns."""
    values = torch.ones(1000, device="cuda")
    row = torch.zeros(1, len(reduce.COLUMNS), dtype=torch.float64, device="cuda")
    places = [(row.data_ptr(), values)] * 100
    reads.read(*places[0])
    reads.read_many(places)
    torch.cuda._sleep(2_000_000_000)  # about a second
    busy = torch.cuda.Event()
    busy.record()
    reads.read(*places[0])
    reads.read_many(places)
    assert not busy.query()


def test_what_a_cuda_graph_captures_is_not_observed(ingest: IngestDouble) -> None:
    model = nn.Linear(8, 8).cuda().requires_grad_(False)
    values = torch.ones(4, 8, device="cuda")
    with rangewatch.attach(model, url=ingest.url, kinds=["output"]) as handle:
        model(values)
        handle.step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(values)
        handle.step()
        graph.replay()
        model(values)
        handle.step()
        assert handle.stats()["skipped"]["cuda_graph"] == 1
    assert sorted(ingest.tensors()["", "output", 0]) == [0, 2]


def test_what_a_cuda_graph_captures_is_observed_at_each_replay(ingest: IngestDouble) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda().requires_grad_(False)
    values = torch.ones(4, 8, device="cuda")
    with rangewatch.attach(model, url=ingest.url, kinds=["output"], cuda_graphs=True) as handle:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(values)
        torch.cuda.current_stream().wait_stream(side)
        handle.step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(values)
        expected = {}
        for step, fills in ((1, []), (2, [2.0, float("nan")]), (3, [5.0])):
            outputs = []
            for fill in fills:
                values.fill_(fill)
                graph.replay()
                outputs.append(captured.cpu())
            handle.step()
            expected[step] = outputs
        assert handle.stats()["skipped"]["cuda_graph"] == 0
    graph.replay()  # its rows are there still
    torch.cuda.synchronize()
    recorded = ingest.tensors()["", "output", 0]
    assert sorted(recorded) == [0, 2, 3]
    for step in (2, 3):
        for name, value in statistics_of(expected[step]).items():
            assert recorded[step][name] == pytest.approx(value, rel=1e-6 if name == "sum_sq" else 0.0), (step, name)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_exponents_are_those_of_the_host(reads: FusedReads, dtype: torch.dtype) -> None:
    patterns = torch.randint(-128, 128, (3_000_017 * dtype.itemsize,), dtype=torch.int8, device="cuda")
    tensor = patterns.view(dtype)
    for shown in (tensor, tensor[1:], tensor[: 3000 * 1000].view(3000, 1000)[:, ::3], tensor[:1].expand(70, 3)):
        counts = torch.zeros(exponents.BINS, dtype=torch.int64, device="cuda")
        assert reads.count_exponents(counts.data_ptr(), shown), reads.why_no_exponents
        on_host = reduce.full_set(shown.cpu(), histogram=True).exponents
        assert on_host is not None and counts.tolist() == on_host.tolist()
        assert reduce.count_exponents(shown).tolist() == on_host.tolist()


def test_a_tensor_of_another_stream_is_read_in_that_stream(reads: FusedReads) -> None:
    """The read is queued where the tensor is made, behind what makes it."""
    row = torch.empty(1, len(reduce.COLUMNS), dtype=torch.float64, device="cuda")
    reduce.fill_identities(row)
    values = torch.zeros(1 << 16, device="cuda")
    reads.read(row.data_ptr(), values)  # compiles
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        values.fill_(7.0)
        reads.read(row.data_ptr(), values)
        reads.read_many([(row.data_ptr(), values)])
    torch.cuda.current_stream().synchronize()
    side.synchronize()
    assert row[0, 0].item() == 7.0 and row[0, 6].item() == 2 * 49.0 * (1 << 16)


def test_the_devices_time_is_taken_without_waiting() -> None:
    buffer = own_buffer()
    buffer.row.grow()
    reader = DeviceReader(buffer.row)
    values = torch.ones(1 << 24, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(3):
            reader.times_step = step if step else None
            reader.read(0, values)
            reader.read_many([(0, values), (0, values)])
            buffer.close(step)
            reader.end_step()
        taken: dict[int, DeviceCost] = {}
        while len(taken) < 2:  # the test's time limit ends this
            taken |= reader.take_device_costs()
            time.sleep(0.001)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sorted(taken) == [1, 2] and all(0.0 < each.seconds < 60.0 for each in taken.values())


def test_both_ways_of_the_reader_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    tensors = [torch.randn(300, 70, device="cuda"), torch.full((5,), float("inf"), device="cuda", dtype=torch.bfloat16)]
    for why_not in ("", "to compare"):
        monkeypatch.setattr(fused, "_why_not", lambda device, why_not=why_not: why_not)
        buffer = own_buffer()
        for _ in range(2):
            buffer.row.grow()
        reader = DeviceReader(buffer.row)
        for number, tensor in enumerate(tensors):
            reader.read(number, tensor)
        reader.read_many(list(enumerate(tensors)))
        buffer.close(0)
        reader.end_step()
        block = buffer.take()
        for copy in reader.take(2):
            while not copy.is_complete():
                time.sleep(0.001)
            copy.merge_into(block, POSITIONS)
        found.append(torch.from_numpy(block.rows))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=0.0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_model_on_two_devices(ingest: IngestDouble) -> None:
    first, second = nn.Linear(8, 8).to("cuda:0"), nn.Linear(8, 8).to("cuda:1")
    model = nn.ModuleList([first, second])
    with rangewatch.attach(model, url=ingest.url) as handle:
        out = second(first(torch.ones(2, 8, device="cuda:0")).to("cuda:1"))
        out.sum().backward()
        handle.step()
    tensors = ingest.tensors()
    assert tensors["1", "output", 0][0]["amax"] == out.detach().abs().max().item()
    assert tensors["0.weight", "grad", 0][0]["numel"] == 64
