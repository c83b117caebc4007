"""Both forms of what came out: `report.json` with everything, `report.md` to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from parts import Aim, Part

NO_DEVICE = "not run: no CUDA device"


class Result(NamedTuple):
    """What became of a part."""

    part: Part
    status: str
    """`passed`, `failed: ...` or `not run: ...`; with no GPU always the last."""
    dry_run: str
    """What was seen without a GPU; empty where nothing was tried."""
    took_s: float
    answer: dict[str, Any]
    """Checks, what failed, figures and notes of the program."""
    printed: str

    @property
    def is_bad(self) -> bool:
        """It was run, here or in its dry form, and something was wrong."""
        return self.status.startswith("failed") or ": failed" in self.dry_run


def first_line(machine: dict[str, Any]) -> str:
    """Which card, driver and torch; or that all of this has never run on one."""
    if not machine.get("card"):
        return f"never run on a GPU: no CUDA device (torch {machine.get('torch', 'unknown')})"
    versions = (
        f"driver {machine['driver'] or 'unknown'}, torch {machine['torch']}, Triton {machine['triton'] or 'none'}"
    )
    return f"{machine['card']}, {versions}"


def write(out: Path, command: str, machine: dict[str, Any], began: str, results: list[Result]) -> None:
    """Both files, anew after each part, so that a command that is cut short leaves what it has."""
    parts = [
        {"name": each.part.name, "title": each.part.title, "status": each.status, "dry_run": each.dry_run,
         "took_s": round(each.took_s, 1), **each.answer, "aims": aims(each), "printed": each.printed}
        for each in results
    ]  # fmt: skip
    whole = {"first_line": first_line(machine), "command": command, "began": began, "machine": machine, "parts": parts}
    (out / "report.json").write_text(json.dumps(whole, indent=1) + "\n")
    (out / "report.md").write_text(text(command, machine, began, results))


def text(command: str, machine: dict[str, Any], began: str, results: list[Result]) -> str:
    """The report as Markdown."""
    lines = [first_line(machine), "", f"`{command}`, {began}", "", "| part | | seconds |", "|---|---|---|"]
    for each in results:
        dry = f"; dry run, {each.dry_run}" if each.dry_run else ""
        lines.append(f"| {each.part.title} | {each.status}{dry} | {each.took_s:.0f} |")
    rows = [row for each in results for row in aims(each)]
    if rows:
        lines += ["", "| aim | bound | measured | |", "|---|---|---|---|"]
        lines += [f"| {row['title']} | {row['bound']} | {row['measured']} | {row['verdict']} |" for row in rows]
    for each in results:
        lines += _details(each)
    return "\n".join(lines) + "\n"


def _details(result: Result) -> list[str]:
    answer, lines = result.answer, list[str]()
    for failed in answer.get("failed", []):
        lines.append(f"- wrong: {failed}")
    lines += [f"- {note}" for note in answer.get("notes", [])]
    lines += [f"- {name}: {_short(value)}" for name, value in answer.get("figures", {}).items() if name != "sizes"]
    lines += _sizes(answer.get("figures", {}).get("sizes", []))
    if result.is_bad and result.printed:
        lines += ["", "```", *result.printed.splitlines()[-25:], "```"]
    return ["", f"## {result.part.title}", "", *lines] if lines else []


def _sizes(sizes: list[dict[str, Any]]) -> list[str]:
    if not sizes:
        return []
    lines = ["", "| dtype | MiB | copy GB/s | kernel GB/s | of the copy |", "|---|---|---|---|---|"]
    for size in sizes:
        share = size["fused"] / size["copy"]
        row = f"| {size['dtype']} | {size['mebibytes']:g} | {size['copy']:.0f} | {size['fused']:.0f} | {share:.0%} |"
        lines.append(row)
    return lines


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_short(each)}" for name, each in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value}"[:300]


def aims(result: Result) -> list[dict[str, Any]]:
    """Of each aim of a part what was measured, and whether that is met."""
    return [_aim(each, result) for each in result.part.aims]


def _aim(aim: Aim, result: Result) -> dict[str, Any]:
    value: Any = result.answer.get("figures", {})
    for key in aim.path:
        value = value.get(key) if isinstance(value, dict) else None
    bound = f"{'at most' if aim.is_most else 'at least'} {aim.bound}"
    if not isinstance(value, (int, float)) or result.status.startswith("not run"):
        return {"title": aim.title, "bound": bound, "measured": "", "verdict": "not measured"}
    is_met = value <= aim.bound if aim.is_most else value >= aim.bound
    return {"title": aim.title, "bound": bound, "measured": round(value, 3), "verdict": "met" if is_met else "missed"}
