"""`attach` for scripts that nobody edits: `rangewatch run -- torchrun train.py`.

In: the variable `VARIABLE` and a folder on PYTHONPATH, whose `sitecustomize` waits for torch (`import_hook`). Out: one
`attach` to what an optimizer trains, before its first forward (`watch`). Never: anything where it was not asked for, an
exception into the script, or a change of what the script computes.
"""

from __future__ import annotations

from pathlib import Path

VARIABLE = "RANGEWATCH_AUTO_ATTACH"
"""Set to 1 where it is asked for."""

SITE = Path(__file__).parent / "site"
"""The folder for PYTHONPATH."""
