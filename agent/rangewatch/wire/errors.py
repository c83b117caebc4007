"""What can be wrong with bytes from the network."""

from __future__ import annotations


class WireError(ValueError):
    """A message that cannot be taken. `code` is a short stable name, the text one line for a person."""

    def __init__(self, code: str, message: str) -> None:
        # It may quote what was sent: a line break in it would be a line of its own in a log.
        super().__init__("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in message))
        self.code = code
