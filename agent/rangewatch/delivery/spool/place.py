"""Where a rank's spool lies: a folder that is this user's alone, on a disk of this machine."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from rangewatch.delivery.spool import process
from rangewatch.delivery.spool.folder import is_spool
from rangewatch.wire.records import RankInfo

_NETWORK = re.compile(
    r"nfs\d?|smbfs|smb\d|cifs|afs|9p|v9fs|virtiofs|lustre|gpfs|beegfs\w*|ceph|glusterfs|panfs|pvfs2|orangefs|ocfs2|gfs2"
    r"|wekafs|vastnfs|sshfs|davfs|fuse(\..+)?|fuseblk|autofs"
)
"""File systems of a network: a write may wait for a server that is away, which a local disk's cannot."""

_MAGICS = {
    0x6969: "nfs", 0x517B: "smb", 0xFF534D42: "cifs", 0xFE534D42: "smb2", 0x5346414F: "afs", 0x01021997: "9p",
    0x0BD00BD0: "lustre", 0x47504653: "gpfs", 0x19830326: "beegfs", 0x00C36400: "ceph", 0x65735546: "fuse",
    0xAAD7AAEA: "panfs", 0x20030528: "orangefs", 0x7461636F: "ocfs2", 0x01161970: "gfs2", 0x0187: "autofs",
}  # fmt: skip
"""`statfs.f_type` where /proc/self/mountinfo cannot be read (statfs(2) lists them)."""


class Refused(Exception):
    """Why there can be no spool in a folder, in one line."""


def base_folder(spool_dir: str | None) -> Path:
    """The folder of this user's spools under `spool_dir`, or the temporary folder, made when it is missing.

    Raises `Refused` when it lies on a network, or is not ours alone.
    """
    if not process.HAS_LOCKS:
        raise Refused(f"there is no spool on {sys.platform}")
    top = Path(spool_dir or tempfile.gettempdir())
    try:
        kind = file_system(top)
        if _NETWORK.fullmatch(kind):
            raise Refused(f"{top} is on a network file system ({kind})")
        if spool_dir:
            top.mkdir(parents=True, exist_ok=True)
        _check_top(top)
        base = base_path(spool_dir)
        base.mkdir(mode=0o700, exist_ok=True)
        _check_ours(base)
    except OSError as error:
        raise Refused(f"{top} cannot be used ({error.strerror or error})") from None
    return base


def base_path(spool_dir: str | None) -> Path:
    """Where that is, whether it is there or not."""
    return Path(spool_dir or tempfile.gettempdir()) / f"rangewatch-{os.geteuid()}"


def choose_base(spool_dir: str | None) -> tuple[Path | None, str]:
    """The base folder and why it is not the first choice: then it is in the temporary folder. None: neither will do."""
    reasons: list[str] = []
    for each in dict.fromkeys((spool_dir, None)):
        try:
            return base_folder(each), "; ".join(reasons)
        except Refused as error:
            reasons.append(str(error))
    return None, "; ".join(reasons)


def rank_folder(base: Path, info: RankInfo, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the rank's own folder is to be: all ranks of a job on this machine have the same parent."""
    run = hashlib.blake2b(info.run.encode(), digest_size=6).hexdigest()
    return base / job_key(info.run, environment) / f"{run}-r{info.rank}-{info.incarnation}"


def job_key(run: str, environment: Mapping[str, str] = os.environ) -> str:
    """The same for all ranks of a job, as a folder's name: torchrun's id or Slurm's, or the run's name."""
    job = environment.get("TORCHELASTIC_RUN_ID", "")
    if job in {"", "none"}:
        job = environment.get("SLURM_JOB_ID", "") or run
    digest = hashlib.blake2b(job.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    return f"{re.sub('[^A-Za-z0-9_.-]', '_', job)[:40].lstrip('.')}-{digest}"


def spools(top: Path) -> Iterator[Path]:
    """The spools at `top`, or below: one rank's, a job's, all of a user's, or of a `spool_dir`. No link is followed.

    And folders that may not be looked into, which may be spools: `Folder` says so.
    """
    yield from _spools(top, 3)


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`, such as `ext4`; "" where it cannot be known."""
    kind = _mounted(str(path.absolute()))  # by name first: a look at the path may wait for a server that is away
    if _NETWORK.fullmatch(kind):
        return kind
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return _mounted(os.path.realpath(existing)) or _MAGICS.get(_statfs_type(existing), "")


def _spools(top: Path, levels: int) -> Iterator[Path]:
    try:
        below = None if is_spool(top) else _folders(top) if levels else []
    except PermissionError:
        below = None
    if below is None:
        yield top
        return
    for each in below:
        yield from _spools(each, levels - 1)


def _folders(top: Path) -> list[Path]:
    try:
        with os.scandir(top) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _check_top(top: Path) -> None:
    status = top.stat()
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    if is_shared and status.st_uid != os.geteuid():
        raise Refused(f"others may rename what is in {top}: it has no sticky bit")


def _check_ours(base: Path) -> None:
    descriptor = os.open(base.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.stat(base.name, dir_fd=descriptor, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            raise Refused(f"{base} is no folder but a link or a file")
        if status.st_uid != os.geteuid():
            raise Refused(f"{base} belongs to user {status.st_uid}")
        if status.st_mode & 0o077:
            os.chmod(base.name, 0o700, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _mounted(path: str) -> str:
    """The type of the mount with the longest mount point above the path; of several at one point the last."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), left.split()[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind


def _statfs_type(path: Path) -> int:
    """`f_type`, the first word of `struct statfs` on 64-bit Linux; -1 elsewhere."""
    if not sys.platform.startswith("linux"):
        return -1
    try:
        buffer = ctypes.create_string_buffer(512)
        library = ctypes.CDLL(None, use_errno=True)
        if library.statfs(os.fsencode(path), buffer) != 0:
            return -1
    except (OSError, AttributeError, ValueError):
        return -1
    return int.from_bytes(buffer.raw[:8], sys.byteorder) & 0xFFFFFFFF
