"""Every bad frame to a real server: refused with its own code, nothing stored, no memory kept, good ones go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest
from sqlalchemy import create_engine, func, select

from rangewatch import wire
from rangewatch.wire.records import StreamHeader
from rangewatch_server.core.errors import STATUS_OF_CODE
from rangewatch_server.store import tables
from rangewatch_server.store.batch_checks import check_header, check_opening, check_ranges
from tests.fuzz import template
from tests.fuzz.bad_frames import CORPUS, codes, frames
from tests.server.process import Server

CODE_OF = codes()
NEED_THE_STORE = ("too_far_ahead", "unknown_catalogue", "unknown_run")
KEPT_BYTES = 24 << 20  # a third of what the largest frame unpacks to: measured, rounds differ by 1 MiB


def body(name: str) -> bytes:
    return (CORPUS / f"{name}.rwch").read_bytes()


def test_the_corpus_is_what_the_codes_are_of() -> None:
    assert sorted(path.stem for path in CORPUS.iterdir()) == sorted(CODE_OF), "python -m tests.fuzz.bad_frames"
    assert len(CODE_OF) > 200


@pytest.mark.slow
def test_the_corpus_is_what_the_script_makes() -> None:
    """By name and code: how well zstd packs differs from one release to the next."""
    assert {name: frame.code for name, frame in frames().items()} == CODE_OF, "python -m tests.fuzz.bad_frames"


def test_each_is_refused_for_its_own_reason() -> None:
    for name, code in CODE_OF.items():
        if code not in NEED_THE_STORE:
            with pytest.raises(wire.WireError) as caught:
                taken(body(name))
            assert caught.value.code == code, name
            assert 0 < len(str(caught.value)) < 400 and "\n" not in str(caught.value), name


def taken(found: bytes) -> None:
    """What the server does with a body before anything of it is stored."""
    message = wire.decode(found)
    if isinstance(message, StreamHeader):
        check_opening(message)
        return
    check_header(message)
    if message.ranges is not None:
        check_ranges(message.ranges, template.CATALOGUE.statistics, len(template.CATALOGUE.tensors))


def stored(url: str) -> dict[str, Any]:
    """Rows of each table, and what the streams know of themselves."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found: dict[str, Any] = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar()
            for table in tables.metadata.sorted_tables
        }
        found["streams themselves"] = connection.execute(select(tables.streams).order_by(tables.streams.c.id)).all()
    engine.dispose()
    return found


def test_a_server_refuses_them_and_goes_on(start_server: Callable[..., Server], sqlite_url: str) -> None:
    names = [name for number, name in enumerate(CODE_OF) if number % 6 == 0 or CODE_OF[name] in NEED_THE_STORE]
    refuses_them_and_goes_on(start_server(db=sqlite_url), sqlite_url, names, rounds=1)


@pytest.mark.slow
def test_a_server_refuses_all_and_goes_on(start_server: Callable[..., Server], database_url: str) -> None:
    refuses_them_and_goes_on(start_server(db=database_url), database_url, list(CODE_OF), rounds=3)


def refuses_them_and_goes_on(server: Server, url: str, names: list[str], *, rounds: int) -> None:
    process = psutil.Process(server.process.pid)
    assert server.post(template.OPENING).status_code == server.post(template.good_batch(0)).status_code == 202
    before, sizes = stored(url), [process.memory_info().rss]
    for _ in range(rounds):
        for name in names:
            code = CODE_OF[name]
            answer = server.post(body(name))
            assert (answer.status_code, answer.json()["code"]) == (STATUS_OF_CODE[code], code), name
            assert "\n" not in answer.json()["error"]
        sizes.append(process.memory_info().rss)
    assert stored(url) == before
    assert sizes[-1] <= sizes[min(1, rounds - 1)] + KEPT_BYTES, sizes  # the first time around there is more to make
    after = server.post(template.good_batch(1))
    assert (after.status_code, after.json()["contiguous"], after.json()["duplicate"]) == (202, 1, False)
    print([size >> 20 for size in sizes])


@pytest.mark.slow
def test_refused_bodies_are_let_go_of(server: Server) -> None:
    """Two KiB of each, 64 MiB unpacked: what refuses them must not keep them."""
    process = psutil.Process(server.process.pid)
    sizes = []
    for name in ("bomb_within", "million_series") * 20:
        assert server.post(body(name)).status_code in (400, 413)
        sizes.append(process.memory_info().rss)
    assert max(sizes) <= sizes[0] + 2 * KEPT_BYTES, [size >> 20 for size in sizes]
