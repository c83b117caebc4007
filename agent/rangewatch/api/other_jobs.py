"""Whether another job of this machine records the same rank of the same run: the server takes the two for one."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

from rangewatch.core import limits
from rangewatch.core.guard import logger
from rangewatch.delivery.spool import place
from rangewatch.delivery.spool.folder import Folder, SpoolError
from rangewatch.wire.records import RankInfo


def warn_of_another(info: RankInfo, url: str, own: Path) -> None:
    """Called by the sender's thread, once the spool of this rank, `own`, is there: it reads a disk."""
    top = own.parent.parent
    for path in itertools.islice(place.spools(top), limits.ACCOUNT_NAMES):
        if path != own and _is_same(path, info, url):
            logger.warning(
                "rangewatch: another process of this machine records rank %d of run %r now: the two become one run. "
                "RANGEWATCH_RUN gives this job a name of its own",
                info.rank,
                info.run,
            )
            return


def _is_same(path: Path, info: RankInfo, url: str) -> bool:
    with contextlib.suppress(SpoolError, OSError):
        folder = Folder(path)
        is_same = (folder.info.run, folder.info.rank, folder.url) == (info.run, info.rank, url)
        return is_same and folder.pid != info.pid and not folder.has_ended and folder.is_in_use()
    return False
