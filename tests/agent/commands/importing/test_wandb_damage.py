"""`rangewatch import` of run files of W&B that are cut, damaged, or of something else, and of rows of any content."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from rangewatch.commands.importing import wandb, wandb_file
from rangewatch.commands.importing.scalars import MOST_NAMES, ImportFailed
from tests.agent.commands.importing.run_files import NO_NUMBERS, chunk, field, long_run, path_of, row, row_of, run_file
from tests.agent.commands.importing.test_import import bring, names
from tests.server.process import Run, Server


@pytest.fixture
def long(tmp_path: Path) -> Path:
    return long_run(tmp_path)


@pytest.mark.parametrize("cut", [1, 5, 100, 1000, 50_000, 100_000])
def test_a_run_that_was_killed_is_read_as_far_as_it_goes(long: Path, cut: int) -> None:
    long.write_bytes(long.read_bytes()[:-cut])
    found = wandb.read(long)
    (said,) = found.remarks
    assert said == f"{long} ends within a record, as if its run was killed or goes on; all before is read"
    assert found.values["loss"] == {step: step / 8 for step in range(len(found.values["loss"]))}
    assert 30 <= len(found.values["loss"]) <= 60


def test_what_is_cut_is_sent_and_said(served: Server, run: Run, long: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long.write_bytes(long.read_bytes()[:100_000])
    assert bring(served, str(long), "--run", run.name) == 0
    assert run.get()["last_step"] == 29
    assert f"{run.name}: {long} ends within a record, " in capsys.readouterr().err


def test_a_damaged_record_is_left_out_and_said(tmp_path: Path) -> None:
    content = bytearray(path_of("aaaa1111").read_bytes())
    content[content.rindex(b"0.3333333333333333")] ^= 1  # of step 2: its row is written after its summary
    path = tmp_path / "run-1.wandb"
    path.write_bytes(content)
    found = wandb.read(path)
    assert sorted(found.values["train/loss"]) == [step for step in range(20) if step != 2]
    (said,) = found.remarks
    size, rest = said.split(" ", 1)
    assert 150 < int(size) < 300 and rest == f"bytes left out of {path}: damaged, or of a record that is too large"


@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_damaged_head_costs_no_other_block(long: Path, at: int) -> None:
    """Checksum, length and kind of a chunk in the middle of a record, all of which is lost."""
    content = bytearray(long.read_bytes())
    content[2 * wandb_file.BLOCK_BYTES + at] ^= 0x55
    long.write_bytes(content)
    found = wandb.read(long)
    assert len(found.remarks) == 1 and " bytes left out of " in found.remarks[0]
    assert found.values["loss"].keys() | {30} == set(range(60))  # block 2 is of the large row, or of its summary


def test_no_record_is_put_together_of_two(tmp_path: Path) -> None:
    """One without its end, and one without its beginning."""
    whole = row(7, loss="1.0")
    path = run_file(tmp_path / "run-1.wandb")
    first, last = chunk(wandb_file.FIRST, whole[:5]), chunk(wandb_file.LAST, whole[5:])
    path.write_bytes(wandb_file.NAME + first + chunk(wandb_file.FULL, row(8, loss="2.0")) + last + first)
    found = wandb.read(path)
    assert found.values == {"loss": {8: 2.0}}
    lost, cut = found.remarks
    assert lost.startswith(f"{len(whole)} bytes left out of ") and " ends within a record" in cut


def test_a_record_that_is_too_large_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_file, "MOST_RECORD_BYTES", 100_000)
    large = row(1, text=f'"{"x" * 100_000}"')
    found = wandb.read(run_file(tmp_path / "run-1.wandb", row(0, loss="1"), large, row(2, loss="3")))
    assert found.values == {"loss": {0: 1.0, 2: 3.0}}
    assert found.remarks[0].startswith(f"{len(large)} bytes left out of ")


def test_another_file_is_refused(served: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest of its folder is not, and the status tells of it."""
    path = tmp_path / "run-1.wandb"
    said = f"rangewatch import: {path} is no run file of W&B: it does not begin as one\n"
    run_file(tmp_path / "run-2.wandb", row(0, loss="1"))
    for content in (b"not W&B's", b":W&", wandb_file.NAME[:-1] + b"\1", b"\0" * 40_000):
        path.write_bytes(content)
        assert bring(served, str(path), "--run", run.name) == 2
        assert capsys.readouterr().err == said, content
    assert names(served, run.name) == []
    assert bring(served, str(tmp_path), "--run", run.name) == 2
    assert capsys.readouterr().err == said
    assert names(served, run.name) == [f"{run.name}/2"]


def test_a_file_that_goes_away_meanwhile_costs_no_other_run(
    served: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, _ = (run_file(tmp_path / f"run-{each}.wandb", row(0, loss="1")) for each in "12")
    files = wandb.find(tmp_path)
    gone.unlink()
    monkeypatch.setattr(wandb, "find", lambda _: files)
    assert bring(served, str(tmp_path), "--run", run.name) == 2
    assert names(served, run.name) == [f"{run.name}/2"]


def test_a_file_that_grows_while_it_is_read_is_not_damaged(tmp_path: Path) -> None:
    """What is new begins within a block: it is left for the next time."""

    class Growing(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            content = super().read(size)
            at = self.tell()
            self.write(chunk(wandb_file.FULL, row(1, loss="1")))
            self.seek(at)
            return content

    file = wandb_file.RunFile(Growing(run_file(tmp_path / "run-1.wandb", row(0, loss="1")).read_bytes()))
    assert (list(file.records()), file.lost_bytes, file.is_cut) == ([row(0, loss="1")], 0, False)


def test_a_sound_chunk_that_is_no_message_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportFailed, match="is no run file of W&B: a number does not end"):
        wandb.read(run_file(tmp_path / "run-1.wandb", b"\x08\xff"))


def test_bytes_changed_at_its_beginning_and_at_random_never_end_it_otherwise(long: Path) -> None:
    """Damage, or no run file: checksums let nothing else pass."""
    whole = path_of("aaaa1111").read_bytes()
    wanted = wandb.read(path_of("aaaa1111"))
    random = np.random.default_rng(0)
    outcomes = set()
    for number in range(80):
        content = bytearray(whole)
        for at in (number, *random.integers(80, len(content), 3)):
            content[at] ^= random.integers(1, 256)
        long.write_bytes(content)
        try:
            found = wandb.read(long)
        except ImportFailed:
            outcomes.add("refused")
            continue
        outcomes.add("read")
        assert found.remarks and found.count() <= wanted.count()
        for name, values in found.values.items():
            assert values.items() <= wanted.values[name].items() or name == "odd"
    assert outcomes == {"read", "refused"}


def test_rows_that_nobody_should_write(tmp_path: Path) -> None:
    deep = tuple("abcdefghij") * 2000
    items = [
        (("loss",), "0.5"), (("loss", "inner"), "1"), (("huge",), "1" * 10_000), (("words",), '"NaN"'),
        (("bad",), "{"), (("nested",), "[" * 100_000), (("nested json",), '{"a":' * 100_000), (("none",), ""),
        ((), "7"), (deep, "8"), (("y",) * 33, "8"), (("z",) * 34, "8"), (("x" * 5000, "y"), "1"),
        (("json",), '{"z":' * 33 + "1" + "}" * 33), (("_runtime",), "9"), (("_step",), "3"),
    ]  # fmt: skip
    found = wandb.read(run_file(tmp_path / "run-1.wandb", row_of(items)))
    assert math.isnan(found.values.pop("words")[3])
    assert found.values == {"loss.inner": {3: 1.0}, "huge": {3: math.inf}, "y" + 32 * ".y": {3: 8.0}}
    assert found.left_out == {NO_NUMBERS: 8, "of a name that is empty, too long, or has NUL or a lone surrogate": 1}


def test_a_path_of_any_length_is_nested_only_so_far() -> None:
    """A million names are two bytes each in a file, and a dict each here."""
    names = b"".join(field(2, b"x") for _ in range(1000))
    row, depth = wandb._row(field(1, names + field(16, b"1"))), 0
    while isinstance(row, dict):
        row, depth = row["x"], depth + 1
    assert (row, depth) == (None, wandb.DEEPEST + 1)


@pytest.mark.parametrize("step", ["-1", "1e300", "2.5", "NaN", '"1"', "true"])
def test_a_row_without_a_step_is_left_out(tmp_path: Path, step: str) -> None:
    found = wandb.read(run_file(tmp_path / "run-1.wandb", row_of([(("loss",), "1"), (("_step",), step)])))
    assert (found.values, sum(found.left_out.values())) == ({}, 1)


def test_no_more_names_than_a_server_takes(tmp_path: Path) -> None:
    """Below a long one, so that each of them is as long."""
    inner = ",".join(f'"{number}":1' for number in range(100_000))
    found = wandb.read(run_file(tmp_path / "run-1.wandb", row_of([(("x" * 4000,), f"{{{inner}}}"), (("_step",), "0")])))
    assert len(found.values) == MOST_NAMES and sum(found.left_out.values()) == 100_000 - MOST_NAMES
