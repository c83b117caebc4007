"""The pages' modules as one script: the same as the modules are, and a map back to them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from rangewatch_server.http.bundle import bundle, source_map
from rangewatch_server.http.static import ENTRY

WEB = Path(__file__).parents[3] / "web"
MODULES = {
    "app.js": """import page from "./pages/one.js";
import { add, NAME as name } from "./sums.js";
import * as sums from "./sums.js";
import {
  Counter,
} from "./parts/counter.js";

/** @typedef {import("./sums.js").Sum} Sum */
console.log(JSON.stringify([page.title, add(1, 2), name, Object.keys(sums).sort(), new Counter().next()]));
""",
    "sums.js": """console.log("sums, once");
const hidden = 3;
export const NAME = "import { a } from b;";
export function add(/** @type {number} */ a, b) { return a + b + hidden; }
export async function later() {}
""",
    "pages/one.js": """import { NAME } from "../sums.js";
const hidden = "another module's";
const made = (entry) => ({ ...entry, title: entry.title + hidden });
export default made({ title: NAME });
""",
    "parts/counter.js": """import { add } from "../sums.js";
console.log(new URL("../beside.js", import.meta.url).href);
export class Counter { next() { return add(0, 1); } }
export {};
""",
}


def ran(folder: Path, name: str) -> str:
    done = subprocess.run(["node", name], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, source in {**files, "package.json": '{"type": "module"}'}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    return folder


def test_it_does_what_the_modules_do(tmp_path: Path) -> None:
    made = bundle(MODULES, "app.js", "app.bundle.js.map")
    folder = written(tmp_path, {**MODULES, "app.bundle.js": made})
    assert ran(folder, "app.bundle.js") == ran(folder, "app.js")
    assert ran(folder, "app.js").count("sums, once") == 1


WRONG: list[tuple[dict[str, str], str]] = [
    ({"a.js": 'import { b } from "./gone.js";'}, "a.js imports gone.js, which is not there"),
    ({"a.js": 'import { b } from "./b.js";', "b.js": 'import { a } from "./a.js";'}, "b.js imports a.js, which im"),
    ({"a.js": "export let moved = 1;"}, "a.js: not understood: export let moved = 1;"),
    ({"a.js": 'import "./b.js";'}, 'a.js: not understood: import "./b.js";'),
    ({"a.js": "const b = 1;\nexport { b };"}, "a.js: not understood: export { b };"),
    ({"a.js": "export const [b] = [1];"}, "a.js: not understood: export const [b]"),
    ({"a.js": "export default function mount() {}"}, "a.js: not understood: export default function"),
    ({"a.js": 'import { b } from "library";'}, "a.js: not understood: import { b }"),
    (
        {"a.js": 'import { b, c as d } from "./b.js";', "b.js": "export const b = 1, c = 2;"},
        "a.js imports c from b",
    ),
    ({"a.js": 'import b from "./b.js";', "b.js": "export const b = 1;"}, "a.js imports default from b.js, which"),
    ({"a.js": 'const b = import("./b.js");', "b.js": ""}, 'a.js: not understood: import("./b.js");'),
    ({}, "the page imports a.js, which is not there"),
]


def test_what_it_would_get_wrong_is_refused() -> None:
    for wrong, message in WRONG:
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            bundle(wrong, "a.js", "a.js.map")


def test_every_line_of_the_pages_is_mapped_to_its_module(tmp_path: Path) -> None:
    files = {path.relative_to(WEB).as_posix(): path.read_text() for path in WEB.rglob("*.js")}
    made, mapped = bundle(files, ENTRY, "x"), json.loads(source_map(files, ENTRY))
    (tmp_path / "map.json").write_text(json.dumps(mapped))
    (tmp_path / "read.cjs").write_text(
        "const { SourceMap } = require('node:module');\n"
        "const map = new SourceMap(JSON.parse(require('node:fs').readFileSync('map.json', 'utf8')));\n"
        f"const found = [...Array({made.count(chr(10))}).keys()].map((line) => map.findEntry(line, 0));\n"
        "console.log(JSON.stringify(found.map((each) => [each.originalSource, each.originalLine])));\n"
    )
    lines = made.split("\n")
    found = dict(enumerate(json.loads(ran(tmp_path, "read.cjs"))))
    for name in mapped["sources"]:
        source = files[name].split("\n")
        at = lines.index(f'$modules["{name}"] = (($exported) => {{') + 1
        for place, line in enumerate(source):
            assert found[at + place] == [name, place], line
            if not line.startswith(("import ", "export ", "}")) and not re.search(r"import(\(|\.meta)", line):
                assert lines[at + place] == line
    assert set(mapped["sources"]) > {ENTRY, "charts/plotly.js", "pages/overview/overview.js"}
