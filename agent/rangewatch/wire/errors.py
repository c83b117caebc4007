"""What can be wrong with bytes from the network."""

from __future__ import annotations


class WireError(ValueError):
    """A message that cannot be taken. `code` is a short stable name, the text one line for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
