"""The pages' modules as one script, made when it is asked for: a browser that has none of them waits for one file and
not for 86 of them (6 at a time over HTTP/1.1), and no build step stands between an edit and the page. Each module with
a `<link rel="modulepreload">` instead makes a cold first view 16 to 20 % longer (Chromium and server on two cores) and
costs the server 100 ms more of processor time; a second view is the same.

Each module becomes a function that returns what it exports, called once, in the order in which `import` would. That is
the same as modules are as long as none imports itself through others, waits at its top level or assigns to an exported
name again. Understood are `import {a, b as c}`, `import * as a` and `import a` from a relative path, and `export`
before one const, function, class, or default object or call. Anything else is refused, `import()` too.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping

IMPORT = re.compile(r'^import (?P<what>\{[^}]*\}|\* as \w+|\w+) from "(?P<path>\.[^"]+)";$', re.MULTILINE)
EXPORT = re.compile(
    r"^export (?P<what>default (?=\{|\w+\()|(?:const|class|(?:async )?function) (?P<name>\w+))", re.MULTILINE
)
NOT_UNDERSTOOD = re.compile(r"^(?:import|export)\b.*|\bimport\(.*", re.MULTILINE)
NOTHING = "export {};"  # what makes a file of types a module
BEGIN, END = "(($exported) => {", "return $exported; })({});"


def bundle(files: Mapping[str, str], entry: str, map_name: str) -> str:
    """One module that does what `entry` does. `files`: path below a common folder -> source of a module.

    `map_name` is where `source_map` will be. Raises ValueError for a module that is not there, imports in a circle, and
    what is not understood.
    """
    order = list(_in_order(files, entry))
    _check(files, order)
    parts = ["const $modules = {};", *(_wrapped(name, files[name]) for name in order)]
    return "\n".join([*parts, f"//# sourceMappingURL={map_name}", ""])


def source_map(files: Mapping[str, str], entry: str) -> str:
    """The modules of `bundle`, line by line, for a browser's debugger (Source Map revision 3, ECMA-426)."""
    order = list(_in_order(files, entry))
    # A line maps to (file, line, column) relative to the segment before: "AACA" is one line on in the same file.
    mappings = [""]
    last = 0
    for place, name in enumerate(order):
        lines = files[name].count("\n") + 1
        first = f"A{_vlq(min(place, 1))}{_vlq(-last)}A"
        mappings += ["", first, *["AACA"] * (lines - 1), ""]
        last = lines - 1
    return json.dumps({"version": 3, "sources": order, "names": [], "mappings": ";".join(mappings)})


def _vlq(value: int) -> str:
    """Base 64 VLQ: five bits a digit, least first, the sign in the lowest bit."""
    rest = abs(value) << 1 | (value < 0)
    digits = ""
    while True:
        rest, digit = rest >> 5, rest & 31
        digits += "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[digit | (32 if rest else 0)]
        if not rest:
            return digits


def _in_order(files: Mapping[str, str], entry: str) -> Iterator[str]:
    """Each module after those that it imports."""
    done: dict[str, bool] = {}

    def visit(name: str, by: str) -> Iterator[str]:
        if name not in files:
            raise ValueError(f"{by} imports {name}, which is not there")
        if not done.setdefault(name, False):
            for path in _imports(name, files[name]):
                if done.get(path) is False:
                    raise ValueError(f"{name} imports {path}, which imports it")
                if path not in done:
                    yield from visit(path, name)
            done[name] = True
            yield name

    return visit(entry, "the page")


def _check(files: Mapping[str, str], order: list[str]) -> None:
    """Raises ValueError for what modules would refuse."""
    exports = {name: {match["name"] or "default" for match in EXPORT.finditer(files[name])} for name in order}
    for name in order:
        for match in IMPORT.finditer(files[name]):
            path = _beside(name, match["path"])
            if missing := _asked(match["what"]) - exports[path]:
                raise ValueError(f"{name} imports {', '.join(sorted(missing))} from {path}, which does not export it")


def _asked(what: str) -> set[str]:
    """The exported names that an import names."""
    if what.startswith("{"):
        return {each.split(" as ")[0].strip() for each in what.strip("{}").split(",") if each.strip()}
    return set() if what.startswith("*") else {"default"}


def _code(source: str) -> str:
    """Without comments, whose types are written `import("./types.js").Run`."""
    return re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)


def _imports(name: str, source: str) -> list[str]:
    return [_beside(name, each["path"]) for each in IMPORT.finditer(source)]


def _beside(name: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


def _wrapped(name: str, source: str) -> str:
    """Two lines more than the source has, and its own lines where they were."""
    exported: list[str] = []

    def imported(match: re.Match[str]) -> str:
        path = f"$modules[{json.dumps(_beside(name, match['path']))}]"
        what: str = match["what"]
        if what.startswith("{"):
            return f"const {what.replace(' as ', ': ')} = {path};"
        star = what.removeprefix("* as ")
        return f"const {star} = {path};" if star != what else f"const {what} = {path}.default;"

    def declaration(match: re.Match[str]) -> str:
        if not match["name"]:
            return "$exported.default = "
        exported.append(match["name"])
        return str(match["what"])

    body = EXPORT.sub(declaration, IMPORT.sub(imported, source.replace(NOTHING, "")))
    body = body.replace("import.meta.url", f'new URL("./{name}", import.meta.url).href')
    if left := NOT_UNDERSTOOD.search(_code(body)):
        raise ValueError(f"{name}: not understood: {left[0]}")
    given = f"Object.assign($exported, {{ {', '.join(exported)} }});" if exported else ""
    return f"$modules[{json.dumps(name)}] = {BEGIN}\n{body}\n{given} {END}"
