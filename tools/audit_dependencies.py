"""Known vulnerabilities of what the server is made of, by pip-audit; it says so loudly where nobody can be asked.

Usage: audit_dependencies.py PIP_AUDIT REQUIREMENTS
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TIMEOUT_S = 180
SAID = "dependency audit"


def main() -> int:
    """1 when something is known; 0 when nothing is, and when it cannot be done, but with `AUDIT=required` in the
    environment."""
    program, requirements = Path(sys.argv[1]), sys.argv[2]
    if not program.exists():
        return skipped("pip-audit could not be installed here")
    command = [str(program), "--requirement", requirements, "--require-hashes", "--disable-pip", "--format", "json"]
    try:
        done = subprocess.run(  # noqa: S603 - our own file and program
            [*command, "--progress-spinner", "off", "--timeout", "15"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        found = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return skipped("no answer in time")
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines() or ["pip-audit said nothing"]
        return skipped(lines[-1][:200])
    return reported(found)


def reported(found: list[dict[str, Any]]) -> int:
    """Say what was found. A package that the service does not know is `skip_reason`, as all are without network."""
    asked = [each for each in found if "skip_reason" not in each]
    if not asked:
        return skipped("the service knows none of the packages, as when it cannot be reached")
    bad = [(each, hole) for each in asked for hole in each["vulns"]]
    for each, hole in bad:
        fixed = ", ".join(hole["fix_versions"]) or "no version yet"
        sys.stdout.write(f"{SAID}: {each['name']} {each['version']}: {hole['id']}, mended in {fixed}\n")
    sys.stdout.write(f"{SAID}: {len(asked)} of {len(found)} packages looked up, {len(bad)} known vulnerabilities\n")
    return 1 if bad else 0


def skipped(why: str) -> int:
    """Loud, and no failure: a machine without network must be able to lint. A release is not one: `AUDIT=required`."""
    sys.stdout.write(
        f"{'!' * 100}\n{SAID}: NOT DONE: {why}\n{SAID}: nothing is known of the dependencies\n{'!' * 100}\n"
    )
    return int(os.environ.get("AUDIT") == "required")


if __name__ == "__main__":
    sys.exit(main())
