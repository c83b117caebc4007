
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { KEYS, keyFor, keyOf } from "../../web/widgets/keys.js";

const PAGES = fileURLToPath(new URL("../../web/pages/", import.meta.url));

test("a key leads to one thing", () => {
  const pressed = KEYS.filter((key) => key.command || key.page).flatMap(({ keys }) => keys);
  assert.equal(new Set(pressed).size, pressed.length);
  assert.equal(keyFor("/")?.command, "search");
  assert.equal(keyFor("?")?.command, "help");
  assert.equal(keyFor("g l")?.page, "layers");
  assert.equal(keyFor("="), keyFor("+"));
  assert.equal(keyFor("ArrowLeft"), null, "a figure's own");
  assert.equal(keyFor("x"), null);
  assert.equal(keyOf("zoom-in"), "+");
});

test("a letter that begins a pair is no key by itself", () => {
  const begins = new Set(KEYS.flatMap(({ keys }) => keys.filter((key) => key.includes(" ")).map((key) => key[0])));
  assert.deepEqual([...begins].map(keyFor), [null]);
});

test("every page that has an entry can be gone to", () => {
  const listed = readdirSync(PAGES).filter((name) => !["index.js", "step", "tensor", "gpu"].includes(name));
  const ids = listed.map((name) => /\bid: "([\w-]+)"/.exec(readFileSync(`${PAGES}${name}/${name}.js`, "utf8"))?.[1]);
  assert.deepEqual(ids.filter((id) => !KEYS.some(({ page }) => page === id)), []);
});
