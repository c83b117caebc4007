"""Where tensors' modules are written, as agents told it at attach; null where they did not, or do not agree."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from rangewatch.wire.records import TensorEntry
from rangewatch_server.query.reader import RunReader

EVENT = "modules"
NOT_KNOWN: dict[str, Any] = {"module_class": None, "source": None}


class _Class(msgspec.Struct, frozen=True):
    module: str
    name: str
    source: str | None = None


class _Reported(msgspec.Struct, frozen=True):
    """Details of the event; `of`: fqn -> place in `classes`, where several have one name."""

    classes: tuple[_Class, ...] = ()
    of: dict[str, int] = {}


class ModuleSources:
    """What is known of a run's modules."""

    def __init__(self, run: RunReader) -> None:
        self._of_name: dict[str, set[_Class]] = defaultdict(set)
        self._of_fqn: dict[str, set[_Class]] = defaultdict(set)
        for data in {row.data for row in run.newest_events([EVENT])}:  # most ranks tell the same
            self._add(data)
        self._module_of = {entry.fqn: entry.module for entry in run.names().tensors.entries if entry.module}

    def _add(self, data: bytes) -> None:
        try:
            reported = msgspec.json.decode(data, type=_Reported)
        except msgspec.ValidationError:  # another program's, or a later version's
            return
        for each in reported.classes:
            self._of_name[each.module].add(each)
        for fqn, place in reported.of.items():
            if 0 <= place < len(reported.classes):
                self._of_fqn[fqn].add(reported.classes[place])

    def facts(self, entry: TensorEntry) -> dict[str, Any]:
        """`module_class` and `source` of the module that has the tensor; of a parameter, that holds it."""
        fqn = entry.fqn if entry.module else entry.fqn.rpartition(".")[0]
        name = entry.module or self._module_of.get(fqn, "")
        found = self._of_fqn.get(fqn) or self._of_name.get(name, set())
        found = {each for each in found if each.module == name}
        if len(found) != 1:
            return NOT_KNOWN
        (one,) = found
        return {"module_class": one.name, "source": one.source}
