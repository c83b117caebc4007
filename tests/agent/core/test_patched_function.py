"""A function of somebody else's, in the place of which ours stands: whoever saves it, wraps it or puts it back."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rangewatch.core.patched_function import PatchedFunction


class Heard:
    """`calls` of a function that is there and one that listens around it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.owner = SimpleNamespace(act=lambda: self.calls.append("own"))
        self.own = self.owner.act
        self.patched = PatchedFunction(self.owner, "act")

    def around(self, own: Callable[[], None]) -> Callable[[], None]:
        def heard() -> None:
            self.calls.append("heard")
            own()

        return heard

    def install(self) -> Any:
        self.patched.install(self.around)
        return self.owner.act

    def act(self) -> list[str]:
        self.calls.clear()
        self.owner.act()
        return list(self.calls)


def test_it_is_put_in_once_and_taken_away() -> None:
    heard = Heard()
    heard.install()
    heard.install()
    assert heard.act() == ["heard", "own"]
    heard.patched.remove()
    assert heard.owner.act is heard.own


def test_ours_that_somebody_saved_and_puts_back_is_not_wrapped_again() -> None:
    heard = Heard()
    saved = heard.install()
    heard.patched.remove()
    heard.owner.act = saved
    heard.install()
    assert heard.act() == ["heard", "own"]
    heard.patched.remove()
    assert heard.owner.act is heard.own


def test_what_stands_on_top_of_ours_stays_and_ours_is_below_it() -> None:
    heard = Heard()
    ours = heard.install()
    theirs = heard.owner.act = lambda: ours()
    heard.patched.remove()
    assert heard.owner.act is theirs
    heard.install()
    assert heard.owner.act is theirs and heard.act() == ["heard", "own"]


def test_another_function_in_its_place_is_wrapped_too() -> None:
    heard = Heard()
    heard.install()
    heard.patched.remove()
    heard.owner.act = lambda: heard.calls.append("another")
    heard.install()
    assert heard.act() == ["heard", "another"]


def test_an_owner_without_the_function_is_let_be() -> None:
    owner = SimpleNamespace()
    PatchedFunction(owner, "act").install(lambda own: own)
    assert vars(owner) == {}
