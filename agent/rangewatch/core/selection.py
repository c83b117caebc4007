"""Which modules and parameters are recorded, by patterns on their names."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from rangewatch.core.options import Options


class Selection:
    """A pattern stands for the modules it matches and for all that is in them; `*` matches dots too."""

    def __init__(self, options: Options) -> None:
        self._include, self._exclude = options.include, options.exclude

    def has(self, fqn: str) -> bool:
        """Whether the module or parameter with this clean name is recorded."""
        return (not self._include or matches(fqn, self._include)) and not matches(fqn, self._exclude)

    def check(self, fqns: Iterable[str]) -> None:
        """Raise `ValueError` when nothing of the model is recorded, or a pattern of `include` matches nothing."""
        names = list(fqns)
        for pattern in self._include:
            if not any(matches(fqn, (pattern,)) for fqn in names):
                raise ValueError(f"rangewatch option include: {pattern!r} matches no module of the model")
        if not any(map(self.has, names)):
            raise ValueError("rangewatch options include and exclude: no module of the model is left")


def matches(fqn: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of `patterns` stands for the module or parameter with this clean name."""
    return any(fnmatchcase(fqn, pattern) or fnmatchcase(fqn, f"{pattern}.*") for pattern in patterns)
