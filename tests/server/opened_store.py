"""A database with its writer, without a server."""

from __future__ import annotations

from collections.abc import Sequence

from rangewatch import wire
from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.ingest.transaction import Answer
from rangewatch_server.ingest.writer import Writer
from rangewatch_server.query.reader import Queries
from rangewatch_server.store.engine import Engines, open_database
from tests.server.databases import lay_tables


class Store:
    """A database with its writer running; `send` waits for the acknowledgement."""

    def __init__(self, url: str) -> None:
        lay_tables(url)
        self.engines: Engines = open_database(url)
        self.writer = Writer(self.engines)
        self.writer.start()
        self.queries = Queries(self.engines.reader, live_s=15)

    def send(self, message: StreamHeader | Batch) -> Answer:
        return self.send_all([message])[0]

    def send_all(self, messages: Sequence[StreamHeader | Batch]) -> list[Answer]:
        """As agents do that do not wait for one another: the writer takes what waits in one transaction."""
        answers: list[Answer] = []
        for first in range(0, len(messages), 256):  # more than four times as many at once are refused
            bodies = [wire.encode(message) for message in messages[first : first + 256]]
            answers += [each.result(30) for each in [self.writer.submit(wire.decode(body), body) for body in bodies]]
        return answers

    def close(self) -> None:
        self.writer.stop()
        self.engines.dispose()
