"""A function of somebody else's, in the place of which ours stands while anybody listens.

What others have wrapped on top of ours stays and calls ours: a wrapper does nothing where nobody listens any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PatchedFunction:
    """`name` of `owner`, a class or a module. Where `owner` has no such function nothing is done."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._own: Any = None
        self._wrapper: Any = None

    def install(self, around: Callable[[Any], Any]) -> None:
        """Put what `around` makes of the function in its place; nothing where it is there already."""
        present = vars(self._owner).get(self._name)
        if present is not None and (self._wrapper is None or present is self._own):
            self._own, self._wrapper = present, around(present)
            setattr(self._owner, self._name, self._wrapper)

    def remove(self) -> None:
        """Put the function back, unless somebody else has wrapped ours since."""
        if vars(self._owner).get(self._name) is self._wrapper is not None:
            setattr(self._owner, self._name, self._own)
            self._wrapper = None
