"""Where a spool may lie: a folder of this user alone, on a disk of this machine."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rangewatch.delivery.spool import place, process
from rangewatch.delivery.spool.place import Refused
from tests.agent.delivery.spool.batches import INFO, own


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def mounts(monkeypatch: pytest.MonkeyPatch, **kinds: str) -> None:
    """A machine on which the root is ext4, and each folder of `kinds` a mount of that type."""
    lines = ["21 1 8:1 / / rw - ext4 /dev/sda rw"]
    lines += [f"22 1 0:4 / {point} rw,relatime shared:1 - {kind} server:/x rw" for point, kind in kinds.items()]
    read = Path.read_text
    text = "\n".join(lines) + "\n"
    monkeypatch.setattr(
        Path, "read_text", lambda self, *a, **k: text if str(self) == "/proc/self/mountinfo" else read(self, *a, **k)
    )


def test_it_is_made_for_this_user_alone(temporary: Path) -> None:
    base = place.base_folder(None)
    assert base == temporary / f"rangewatch-{os.geteuid()}"
    assert stat.S_IMODE(base.stat().st_mode) == 0o700
    assert place.base_folder(None) == base, "and again"


def test_in_the_folder_asked_for(tmp_path: Path) -> None:
    assert place.base_folder(str(tmp_path / "a" / "b")).parent == tmp_path / "a" / "b"


def test_what_others_could_read_is_closed(temporary: Path) -> None:
    base = temporary / f"rangewatch-{os.geteuid()}"
    base.mkdir(mode=0o755)
    assert stat.S_IMODE(place.base_folder(None).stat().st_mode) == 0o700


def test_a_link_or_a_file_in_its_place_is_refused(temporary: Path, tmp_path: Path) -> None:
    base = temporary / f"rangewatch-{os.geteuid()}"
    (tmp_path / "elsewhere").mkdir()
    base.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="no folder but a link"):
        place.base_folder(None)
    assert place.choose_base(None)[0] is None
    assert list((tmp_path / "elsewhere").iterdir()) == []
    base.unlink()
    base.write_text("")
    with pytest.raises(Refused):
        place.base_folder(None)


def test_somebody_elses_folder_is_refused(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    (temporary / f"rangewatch-{os.geteuid()}").mkdir(mode=0o700)
    with pytest.raises(Refused, match="belongs to user"):
        place.base_folder(None)


def test_a_folder_in_which_others_may_rename_is_refused(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Refused, match="no sticky bit"):
        place.base_folder(None)


def test_a_folder_that_cannot_be_made(temporary: Path) -> None:
    (temporary / "file").write_text("")
    with pytest.raises(Refused, match="cannot be used"):
        place.base_folder(str(temporary / "file" / "below"))
    base, reason = place.choose_base(str(temporary / "file" / "below"))
    assert base is not None and base.parent == temporary and "cannot be used" in reason


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "lustre", "gpfs", "beegfs_nodev", "ceph", "cifs", "smb3", "9p", "fuse.sshfs", "fuse", "virtiofs"],
)
def test_a_network_is_not_written_to(kind: str, temporary: Path, tmp_path: Path, monkeypatch: Any) -> None:
    home = tmp_path / "home"
    mounts(monkeypatch, **{str(home): kind})
    base, reason = place.choose_base(str(home / "me" / "spool"))
    assert base is not None and base.parent == temporary
    assert reason == f"{home}/me/spool is on a network file system ({kind})"
    assert not home.exists(), "it was not even looked at"


def test_a_network_wherever_one_looks(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts(monkeypatch, **{str(temporary): "nfs4", "/home": "lustre"})
    base, reason = place.choose_base("/home/me")
    assert base is None and "(lustre)" in reason and "(nfs4)" in reason
    assert list(temporary.iterdir()) == []


def test_a_link_to_a_network(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts(monkeypatch, **{str(tmp_path / "far"): "nfs"})
    assert place.file_system(tmp_path / "near" / "spool") == "nfs"


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "btrfs", "zfs", "nilfs2", "f2fs"])
def test_disks_of_this_machine(kind: str, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts(monkeypatch, **{str(temporary): kind})
    assert place.choose_base(None)[1] == "" and place.file_system(temporary) == kind


def test_mounts_on_one_another_and_with_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts(monkeypatch, **{"/a": "ext4", "/a/b\\040c": "nfs", "/ab": "lustre"})
    kinds = {path: place._mounted(path) for path in ("/a", "/a/x", "/a/b c/d", "/ab", "/abc")}
    assert list(kinds.values()) == ["ext4", "ext4", "nfs", "lustre", "ext4"]


def test_without_mountinfo_the_file_system_says_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_mounted", lambda path: "")
    assert place.file_system(tmp_path) == "", "no network's number"
    monkeypatch.setattr(place, "_statfs_type", lambda path: 0x6969)
    assert place.file_system(tmp_path) == "nfs"


def test_without_locks_there_is_no_spool(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    monkeypatch.setattr(process, "HAS_LOCKS", False)
    assert place.choose_base(None)[0] is None


def test_ranks_of_a_job_lie_together_and_apart_from_others(tmp_path: Path) -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "../../etc/x y\n"}
    first, second = (
        place.rank_folder(tmp_path, each, torchrun) for each in (INFO, msgspec.structs.replace(INFO, rank=4))
    )
    assert first.parent == second.parent and first != second and first.parent.parent == tmp_path
    assert place.job_key("run", {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77"}).startswith("77-")
    assert place.job_key("run", {}) != place.job_key("run/2", {})
    assert len(place.job_key("x" * 200, {})) < 60 and "/" not in place.job_key("a/b", {})


def test_spools_are_found_below_and_no_link_is_followed(tmp_path: Path) -> None:
    own(tmp_path / "top" / "rangewatch-0" / "job" / "rank")
    own(tmp_path / "elsewhere")
    (tmp_path / "top" / "rangewatch-0" / "link").symlink_to(tmp_path / "elsewhere")
    found = [tmp_path / "top" / "rangewatch-0" / "job" / "rank"]
    for top in (tmp_path / "top", *found[0].parents[:2], *found):
        assert list(place.spools(top)) == found
    assert list(place.spools(tmp_path / "nowhere")) == []


@pytest.mark.parametrize("name", ["x" * 300, "file/below"])
def test_a_path_that_cannot_be_there_is_no_end_of_the_spool(temporary: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    base, reason = place.choose_base(str(tmp_path / name))
    assert base == temporary / f"rangewatch-{os.geteuid()}" and "cannot be used" in reason


def test_a_path_that_may_not_be_looked_at(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As somebody without rights has it; the tests may run as root, whom no mode stops."""
    closed, exists = tmp_path / "closed" / "below", Path.exists

    def forbidden(self: Path, **options: Any) -> bool:
        if self == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return exists(self, **options)

    monkeypatch.setattr(Path, "exists", forbidden)
    base, reason = place.choose_base(str(closed))
    assert base == temporary / f"rangewatch-{os.geteuid()}" and "Permission denied" in reason


def test_a_folder_that_may_not_be_looked_into_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path / "job" / "a")
    (tmp_path / "job" / "b").mkdir()
    own(tmp_path / "job" / "c")
    look = place.is_spool

    def forbidden(folder: Path) -> bool:
        if folder.name == "b":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return look(folder)

    monkeypatch.setattr(place, "is_spool", forbidden)
    assert [each.name for each in place.spools(tmp_path)] == ["a", "b", "c"], "and the others are found"
