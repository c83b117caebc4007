"""Where a rank stands: declared, by Megatron's groups or DeepSpeed's; and what `attach` refuses.

Device meshes, DDP and FSDP are in tests/e2e/test_mesh.py, with four real ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import rangewatch
from rangewatch.core.options import resolve
from rangewatch.recording.parallel.axes import Axes, check_declared, find_axes
from rangewatch.recording.parallel.placements import NOT_REDUCED, Layout, reducing_ranks, why_not
from tests.agent.ingest_double import IngestDouble

MODEL = nn.Linear(2, 2)


@pytest.fixture
def one_rank(tmp_path: Any) -> Iterator[None]:
    """A process group of this process alone; groups of others are made up in it."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def lines(declared: Any, rank: int) -> dict[str, tuple[int, ...]]:
    return {axis.name: axis.ranks for axis in find_axes(MODEL, declared, rank, ())}


def test_a_declared_mesh_is_row_major_as_torch_lays_it_out() -> None:
    sizes = (("pp", 2), ("dp", 3), ("tp", 4))
    assert lines(sizes, 17) == {"pp": (5, 17), "dp": (13, 17, 21), "tp": (16, 17, 18, 19)}
    places = [tuple(axis.index for axis in find_axes(MODEL, sizes, rank, ())) for rank in range(24)]
    assert places == [(pp, dp, tp) for pp in range(2) for dp in range(3) for tp in range(4)]


def test_axes_are_sent_as_ranges_where_they_are_such() -> None:
    axes = Axes(5)
    axes.add("tp", (4, 5), "DeviceMesh")
    axes.add("dp", (1, 5, 9), "DeviceMesh")
    axes.add("odd", (5, 2, 11), "DeviceMesh")
    axes.add("again", (4, 5), "Megatron")
    axes.add("not ours", (6, 7), "Megatron")
    sent = axes.details()
    assert [(each.name, each.index, each.members) for each in sent.axes] == [
        ("dp", 1, (1, 5, 9)), ("tp", 1, (4, 5)), ("odd", 0, (5, 2, 11)),
    ]  # fmt: skip
    assert [bool(each.ranks) for each in sent.axes] == [False, False, True] and sent.source == "DeviceMesh"


class Groups:
    """What Megatron's functions return, as ranks."""

    def __init__(self, *ranks: int) -> None:
        self.ranks = list(ranks)


@pytest.fixture
def group_ranks(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: group.ranks)


def megatron(monkeypatch: pytest.MonkeyPatch, is_initialized: bool = True) -> None:
    """As megatron-core 0.16.1 answers on rank 5 of tp 2 x pp 2 x dp 2."""
    state: Any = ModuleType("megatron.core.parallel_state")
    state.model_parallel_is_initialized = lambda: is_initialized
    state.get_tensor_model_parallel_group = lambda: Groups(4, 5)
    state.get_pipeline_model_parallel_group = lambda: Groups(1, 5)
    state.get_data_parallel_group = lambda: Groups(5, 7)
    state.get_context_parallel_group = lambda: Groups(5)

    def get_expert_model_parallel_group() -> None:
        raise AssertionError("expert model parallel group is not initialized")

    state.get_expert_model_parallel_group = get_expert_model_parallel_group
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)


def test_megatron_says_where_its_ranks_stand(group_ranks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    megatron(monkeypatch)
    sent = find_axes(MODEL, (), 5, ()).details()
    assert [(each.name, each.members) for each in sent.axes] == [("pp", (1, 5)), ("dp", (5, 7)), ("tp", (4, 5))]
    assert sent.source == "Megatron" and not sent.problems
    megatron(monkeypatch, is_initialized=False)
    assert not find_axes(MODEL, (), 5, ()).axes


def test_what_is_declared_and_what_megatron_says_contradict(group_ranks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    megatron(monkeypatch)
    sent = find_axes(MODEL, (("tp", 2), ("dp", 2), ("pp", 2)), 5, ()).details()
    assert sent.source == "declared"
    assert sent.problems[0] == "Megatron has ranks 1, 5 along pp, and the declared mesh has 4, 5"


def test_deepspeed_is_asked_for_no_group_that_it_would_make(group_ranks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: Any = ModuleType("deepspeed.utils.groups")

    def makes_a_group() -> None:
        raise RuntimeError("all ranks would have to make it")

    groups._get_data_parallel_group = makes_a_group
    groups.mpu, groups.mesh_device = None, None
    groups._TENSOR_MODEL_PARALLEL_GROUP, groups._DATA_PARALLEL_GROUP = None, None
    groups._WORLD_GROUP, groups._EXPERT_PARALLEL_GROUP = Groups(0, 1, 2, 3), {"ep_size_2": Groups(0, 1)}
    monkeypatch.setitem(sys.modules, "deepspeed.utils.groups", groups)
    sent = find_axes(MODEL, (), 0, ()).details()
    assert [(each.name, each.members) for each in sent.axes] == [("dp", (0, 1, 2, 3)), ("ep", (0, 1))]
    groups.mpu = ModuleType("mpu")
    groups.mpu.get_pipe_parallel_group, groups.mpu.get_data_parallel_group = lambda: Groups(0, 2), lambda: Groups(0, 1)
    sent = find_axes(MODEL, (), 0, ()).details()
    assert [(each.name, each.members) for each in sent.axes][:2] == [("pp", (0, 2)), ("dp", (0, 1))]


def test_megatron_marks_what_it_shards(group_ranks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    megatron(monkeypatch)
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    for each in model[0].parameters():
        each.tensor_model_parallel, each.partition_dim = True, 0  # type: ignore[attr-defined]
    for each in model[2].parameters():
        each.allreduce = False  # type: ignore[attr-defined]
    placed = {each.fqn: each for each in Layout(model, (), False, 5).parameters()}
    assert placed["0.weight"].axes == {"tp": "shard(0)"} and placed["0.weight"].alike == ()
    assert placed["1.weight"].axes == {"tp": "replicate"} and placed["1.weight"].alike == ("tp",)
    assert placed["2.weight"].axes == {}, "experts"


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"dp": 0}, "must be 1 to 8 axes"), ({"2d": 2}, "must be"), ({"dp": "2"}, "must be"),
        ({"d p": 2}, "must be"), ({str(chr(97 + at)): 1 for at in range(9)}, "must be"), (7, "must be"),
        ({"dp": True}, "must be"),
    ],
)  # fmt: skip
def test_a_mesh_that_cannot_be(given: Any, part: str) -> None:
    with pytest.raises(ValueError, match=f"option mesh=.*{part}"):
        resolve({"mesh": given})


def test_a_mesh_in_the_environment() -> None:
    assert resolve({}, {"RANGEWATCH_MESH": "pp=2, tp=4"}).mesh == (("pp", 2), ("tp", 4))
    assert resolve({}, {"RANGEWATCH_REPLICATED": "tp,cp"}).replicated == ("tp", "cp")
    assert resolve({}, {"RANGEWATCH_REPLICATED": "1"}).replicated is True
    for text in ("pp", "pp=two", "pp=2=3"):
        with pytest.raises(ValueError, match="RANGEWATCH_MESH"):
            resolve({}, {"RANGEWATCH_MESH": text})
    assert resolve({"mesh": {"dp": 2}}).public()["mesh"] == {"dp": 2}


def test_a_product_that_is_not_the_world_size() -> None:
    check_declared((), 4)
    check_declared((("dp", 2), ("tp", 2)), 4)
    with pytest.raises(ValueError, match="dp 2 x tp 3 is 6 ranks, and the world size is 4"):
        check_declared((("dp", 2), ("tp", 3)), 4)


def test_attach_refuses_what_cannot_be(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    for options, part in (
        ({"mesh": {"dp": 3}}, "3 ranks, and the world size is 4"),
        ({"mesh": {"dp": 4}, "replicated": "tp"}, "there is no axis 'tp'; the mesh has dp"),
        ({"replicated": ["tp"]}, "there is no axis 'tp'; no mesh is known"),
        ({"replicated": []}, "must be True, False, or names"),
    ):
        with pytest.raises(ValueError, match=part):
            rangewatch.attach(nn.Linear(2, 2), url=ingest.url, **options)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_declared_mesh_is_sent_once(ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """And placements by the first of the ranks that hold the same parameters."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", str(rank))
    model = nn.Linear(2, 2)
    with rangewatch.attach(model, url=ingest.url, mesh={"dp": 2, "tp": 2}) as handle:
        for _ in range(5):
            model(model.weight).sum().backward()
            handle.step()
        assert not handle.stats()["faults"]
    sent = [event for batch in ingest.batches for event in batch.events if event.kind in ("mesh", "placements")]
    assert [each.kind for each in sent] == ["mesh", "placements"][: 1 if rank else 2]
    places = [(axis["name"], axis["index"]) for axis in sent[0].data["axes"]]
    assert places == [("dp", rank // 2), ("tp", rank % 2)]
    assert rank or sent[1].data == {"groups": [{}], "parameters": {"weight": 0, "bias": 0}, "parameter_count": 2}


@pytest.mark.parametrize("is_all", [True, False])
def test_what_is_wrapped_for_one_rank_alone(one_rank: None, monkeypatch: pytest.MonkeyPatch, *, is_all: bool) -> None:
    """Beside parameters that nobody wraps nothing is known: they may be reduced by hand."""
    inner = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    model = inner if is_all else nn.Sequential(inner, nn.Linear(2, 2))
    layout = Layout(model, (), False, 0)
    layout.find_wrappers()
    assert layout.alone(layout.parameters()) is None, "there is no other rank"
    monkeypatch.setattr(Layout, "world_size", 2)
    assert layout.alone(layout.parameters()) == (("DistributedDataParallel", ()) if is_all else None)
    declared = Layout(model, (("pp", 1), ("dp", 2)), False, 0)
    declared.find_wrappers()
    assert declared.alone(declared.parameters()) == (("DistributedDataParallel", ("dp",)) if is_all else None)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    assert layout.alone(layout.parameters()) is None, "it reduces over both"


def test_parameters_of_one_module_on_meshes_of_their_own(one_rank: None) -> None:
    """As experts beside the rest: torch has several groups of such a module, and its name for one of them raises."""
    common = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_common")
    if not hasattr(common, "ShardPlacementResult"):
        pytest.skip("this torch has one mesh a module")
    rest, experts = (DeviceMesh.from_group(dist.new_group([0]), "cpu") for _ in range(2))
    of_rest, of_experts = (common.FSDPMeshInfo(mesh, shard_mesh_dim=0) for mesh in (rest, experts))
    module = nn.Linear(2, 2)

    def place(parameter: nn.Parameter) -> Any:
        return common.ShardPlacementResult(Shard(0), of_experts if parameter.dim() > 1 else of_rest)

    wrapped: Any = fully_shard(module, mesh=rest, shard_placement_fn=place)
    assert len(wrapped._get_fsdp_state()._fsdp_param_groups) == 2
    assert why_not(wrapped) == "" and reducing_ranks(wrapped) == 1
    of_experts.shard_mesh_size = 4
    assert reducing_ranks(wrapped) == 4
    wrapped.set_requires_gradient_sync(False)
    assert why_not(wrapped) == NOT_REDUCED
