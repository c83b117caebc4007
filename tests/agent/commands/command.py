"""A command of `rangewatch` as if it had been typed, in this process: imports and a fork are most of what one costs."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

from rangewatch import __main__ as command_line


def typed(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit status, what it wrote, and its errors."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["rangewatch", *arguments])
        try:
            status = command_line.main()
        except SystemExit as end:  # argparse's
            status = int(end.code or 0)
    return status, out.getvalue(), err.getvalue()
