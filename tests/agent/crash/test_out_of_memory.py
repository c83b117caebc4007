"""What an exception for want of memory says: messages as allocators write them, a snapshot as torch gives it, and a
real allocation that fails.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

import rangewatch
from rangewatch.crash import out_of_memory
from rangewatch.crash.out_of_memory import asked_bytes, failure_details, live_blocks, message_figures
from rangewatch.wire.events import Failed, LiveBlocks, details_of, read
from tests.agent.ingest_double import IngestDouble

MIB, GIB = 1 << 20, 1 << 30
ADVICE = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management"
)
NOW = (
    "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.66 GiB is free."
    " Process 81034 has 512.00 MiB memory in use. Including non-PyTorch memory, this process has 20.81 GiB memory in "
    "use. Of the allocated memory 12.09 GiB is allocated by PyTorch, and 4.84 GiB is reserved by PyTorch but "
    "unallocated." + ADVICE
)
CONTAINER = (
    "CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has a total capacty of 44.34 GiB of which 160.81 MiB is "
    "free. Process 47694 has 44.17 GiB memory in use. Of the allocated memory 43.36 GiB is allocated by PyTorch, and "
    "396.27 MiB is reserved by PyTorch but unallocated." + ADVICE
)
EARLIER = (
    "CUDA out of memory. Tried to allocate 1.71 GiB (GPU 1; 6.00 GiB total capacity; 3.49 GiB already allocated; "
    "0 bytes free; 3.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting"
)
MPS = (
    "MPS backend out of memory (MPS allocated: 6.75 GiB, other allocations: 336.00 KiB, max allowed: 6.80 GiB). Tried "
    "to allocate 256.00 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit"
)
XPU = (
    "XPU out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.91 GiB. Of the allocated memory "
    "5.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)


def gib(value: float) -> int:
    return int(value * GIB)


@pytest.mark.parametrize(
    ("text", "asked", "figures"),
    [
        (NOW, 3 * GIB, {
            "device": 0, "total_bytes": gib(23.65), "free_bytes": gib(1.66), "others_bytes": 512 * MIB,
            "process_bytes": gib(20.81), "allocated_bytes": gib(12.09), "unallocated_bytes": gib(4.84),
            "reserved_bytes": gib(12.09) + gib(4.84),
        }),
        (CONTAINER, 224 * MIB, {
            "total_bytes": gib(44.34), "free_bytes": int(160.81 * MIB), "allocated_bytes": gib(43.36),
            "unallocated_bytes": int(396.27 * MIB), "reserved_bytes": gib(43.36) + int(396.27 * MIB),
        }),
        (EARLIER, gib(1.71), {
            "device": 1, "total_bytes": 6 * GIB, "free_bytes": 0, "allocated_bytes": gib(3.49),
            "reserved_bytes": gib(3.5), "unallocated_bytes": gib(3.5) - gib(3.49),
        }),
        (MPS, 256 * MIB, {"total_bytes": gib(6.8), "allocated_bytes": gib(6.75)}),
        (XPU, 20 * GIB, {
            "device": 0, "total_bytes": gib(15.91), "allocated_bytes": 5 * GIB, "unallocated_bytes": GIB,
            "reserved_bytes": 6 * GIB,
        }),
        ("out of memory", 0, {}),
    ],
)  # fmt: skip
def test_what_messages_say(text: str, asked: int, figures: dict[str, int]) -> None:
    assert asked_bytes(text) == asked
    assert message_figures(text) == figures


def test_more_than_an_event_holds_is_the_most_that_it_holds() -> None:
    with pytest.raises(RuntimeError, match="can't allocate") as raised:
        torch.empty(2**60)
    details = failure_details(raised.value)
    assert read(Failed, details_of(details)) == details
    assert details.asked_bytes == (1 << 62) - 1
    text = "Of the allocated memory 3 EiB is allocated, 3 EiB is reserved by PyTorch but unallocated"
    assert max(message_figures(text).values()) == (1 << 62) - 1


def test_an_exception_of_the_device() -> None:
    details = failure_details(torch.OutOfMemoryError(NOW))
    assert (details.out_of_memory, details.on_host, details.asked_bytes) == (True, False, 3 * GIB)
    assert details.at_failure["free_bytes"] == gib(1.66)
    assert failure_details(RuntimeError(MPS)).out_of_memory
    assert read(Failed, details_of(details)) == details, "it comes back from the wire as it was"


def test_a_real_allocation_that_fails_is_the_hosts(ingest: IngestDouble) -> None:
    model = torch.nn.Linear(2, 1)
    handle = rangewatch.attach(model, url=ingest.url, collect=())
    with pytest.raises(RuntimeError, match="alloc_cpu"), handle:
        torch.empty(10**15)
    (event,) = ingest.events("failed")
    details = read(Failed, event.data)
    assert details is not None
    assert (details.out_of_memory, details.on_host, details.asked_bytes) == (True, True, 4 * 10**15)
    if sys.platform == "linux":
        assert 0 < details.at_failure["available_bytes"] <= details.at_failure["total_bytes"] < 4 * 10**15
    assert not details.blocks and not details.devices


def test_numpy_and_the_system_say_it_otherwise() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty(10**15)
    details = failure_details(caught.value)
    assert details.on_host and details.asked_bytes == int(7.11 * 1024**5)
    assert failure_details(OSError(12, "Cannot allocate memory")).on_host


def test_the_cause_of_another_exception_counts_and_what_was_handled_does_not() -> None:
    with pytest.raises(ValueError, match="step") as caught:
        try:
            raise torch.OutOfMemoryError(NOW)
        except torch.OutOfMemoryError as error:
            raise ValueError("step 3 failed") from error
    assert failure_details(caught.value).out_of_memory
    with pytest.raises(ValueError, match="later") as handled:
        try:
            raise torch.OutOfMemoryError(NOW)
        except torch.OutOfMemoryError:
            raise ValueError("later, with a smaller batch")  # noqa: B904 - that is the case
    assert failure_details(handled.value) == Failed()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"), OSError(28, "No space left on device"),
        ValueError(NOW), KeyError("allocate"),
    ],
)  # fmt: skip
def test_other_errors_are_none(error: BaseException) -> None:
    assert failure_details(error) == Failed()


class Hostile(RuntimeError):
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_nothing_is_raised_in_what_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure_details(Hostile()) == Failed()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", broken)
    assert failure_details(torch.OutOfMemoryError(NOW)).asked_bytes == 3 * GIB


# Who holds what. The structure is the one that the docstring of torch.cuda.memory._snapshot describes.


def frames(*names: str) -> list[dict[str, Any]]:
    """Innermost first, as torch lists them: C++ first, then torch's own Python, and the user's."""
    known = {
        "cpp": ("??", 0, "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc"),
        "torch": ("/opt/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", 134, "forward"),
        "library": (
            "/opt/env/lib/python3.11/site-packages/transformers/llama/modeling_llama.py",
            240,
            "forward",
        ),
        "attention": ("/data/somebody/work/model/attention.py", 88, "scores"),
        "train": ("/data/somebody/work/train.py", 31, "main"),
    }
    return [dict(zip(("filename", "line", "name"), known[name], strict=True)) for name in names]


def block(size: int, *names: str, state: str = "active_allocated") -> dict[str, Any]:
    return {"size": size, "requested_size": size - 100, "address": 1 << 40, "state": state, "frames": frames(*names)}


def segment(*blocks: dict[str, Any]) -> dict[str, Any]:
    sizes = {"total_size": sum(each["size"] for each in blocks), "allocated_size": 0, "active_size": 0}
    about = {"device": 0, "address": 1 << 40, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0)}
    return about | sizes | {"blocks": list(blocks)}


SEGMENTS = [
    segment(block(2 * GIB, "cpp", "torch", "attention", "train"), block(GIB, "cpp", state="inactive")),
    segment(block(3 * GIB, "cpp", "torch", "attention", "train"), block(4 * GIB, "cpp", "torch", "library")),
    segment(block(64 * MIB, "cpp"), block(MIB, "torch", "train", state="active_awaiting_free")),
]


def test_blocks_are_summed_by_the_users_own_frame() -> None:
    assert live_blocks(SEGMENTS) == (
        LiveBlocks("scores (model/attention.py:88)", 5 * GIB, 2, 3 * GIB),
        LiveBlocks("forward (llama/modeling_llama.py:240)", 4 * GIB, 1, 4 * GIB),
        LiveBlocks("", 64 * MIB, 1, 64 * MIB),
    )


def test_the_older_structure_has_frames_in_a_history() -> None:
    old = {"size": GIB, "state": "active_allocated", "history": [{"real_size": GIB, "frames": frames("train")}]}
    assert live_blocks([segment(old)]) == (LiveBlocks("main (work/train.py:31)", GIB, 1, GIB),)


def test_places_and_time_are_bounded() -> None:
    many = [segment({**block(MIB), "frames": [{"filename": f"/a/b{n}.py", "line": n, "name": "f"}]}) for n in range(50)]
    assert len(live_blocks(many)) == out_of_memory.MOST_PLACES
    assert live_blocks(many, within_s=-1.0) == ()


def test_blocks_are_asked_for_only_where_torch_records(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def snapshot(mempool_id: Any = None, include_traces: bool = True) -> Any:
        asked.append({"include_traces": include_traces})
        return SEGMENTS

    counts = {"active": {"all": {"current": 5}}}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: counts)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: False, raising=False)
    assert out_of_memory.recorded_blocks() == () and not asked
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: True, raising=False)
    assert out_of_memory.recorded_blocks()[0].total_bytes == 5 * GIB
    assert asked == [{"include_traces": False}], "the history may be millions of entries long"
    counts["active"]["all"]["current"] = out_of_memory.MOST_BLOCKS + 1
    assert out_of_memory.recorded_blocks() == () and len(asked) == 1
