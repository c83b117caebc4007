"""Where tensors' modules are written, as agents reported it at attach; null where they did not, or do not agree."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rangewatch.wire.events import ModuleClass, Modules
from rangewatch.wire.records import TensorEntry
from rangewatch_server.query.reader import RunReader

NOT_KNOWN: dict[str, Any] = {"module_class": None, "source": None}


class ModuleSources:
    """What is known of a run's modules."""

    def __init__(self, run: RunReader) -> None:
        self._of_name: dict[str, set[ModuleClass]] = defaultdict(set)
        self._of_fqn: dict[str, set[ModuleClass]] = defaultdict(set)
        reported = {event.data: event for event in run.newest_events([Modules.KIND])}  # of most ranks it is the same
        for event in reported.values():
            self._add(event.read(Modules) or Modules())
        self._module_of = {entry.fqn: entry.module for entry in run.names().tensors.entries if entry.module}

    def _add(self, reported: Modules) -> None:
        for each in reported.classes:
            self._of_name[each.module].add(each)
        for fqn, place in reported.of.items():
            if 0 <= place < len(reported.classes):
                self._of_fqn[fqn].add(reported.classes[place])

    def of(self, entry: TensorEntry) -> dict[str, Any]:
        """`module_class` and `source` of the module that has the tensor; of a parameter, that holds it."""
        fqn = entry.fqn if entry.module else entry.fqn.rpartition(".")[0]
        name = entry.module or self._module_of.get(fqn, "")
        sources = self._of_fqn.get(fqn) or self._of_name.get(name, set())
        sources = {each for each in sources if each.module == name}
        if len(sources) != 1:
            return NOT_KNOWN
        (one,) = sources
        return {"module_class": one.name, "source": one.source}
