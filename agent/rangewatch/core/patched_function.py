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
        self._is_in = False
        """The wrapper stands in the function's place, or below what somebody else has put on top."""

    def install(self, around: Callable[[Any], Any]) -> None:
        """Put what `around` makes of the function in its place; nothing where it is there already.

        One function gets one wrapper, however often this is called: who saved ours while it was there may put it back
        at any time, and around it another one would hear of each call twice.
        """
        present = vars(self._owner).get(self._name)
        if present is None:
            return
        if present is self._wrapper:
            self._is_in = True
            return
        if present is not self._own:
            if self._is_in:
                return
            self._own, self._wrapper = present, around(present)
        setattr(self._owner, self._name, self._wrapper)
        self._is_in = True

    def remove(self) -> None:
        """Put the function back, unless somebody else has wrapped ours since."""
        if self._wrapper is not None and vars(self._owner).get(self._name) is self._wrapper:
            setattr(self._owner, self._name, self._own)
            self._is_in = False
