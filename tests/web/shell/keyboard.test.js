
import assert from "node:assert/strict";
import { test } from "node:test";

import { PAGES } from "../../../web/pages/index.js";
import { shortcutFor, shortcutsOf } from "../../../web/shell/keyboard.js";
import { keyOf } from "../../../web/widgets/keyboard_shortcuts.js";

const SHORTCUTS = shortcutsOf(PAGES);

test("a key leads to one thing", () => {
  const pressed = SHORTCUTS.filter((one) => one.command || one.page).flatMap(({ keys }) => keys);
  assert.equal(new Set(pressed).size, pressed.length);
  assert.equal(shortcutFor(SHORTCUTS, "/")?.command, "search");
  assert.equal(shortcutFor(SHORTCUTS, "?")?.command, "help");
  assert.equal(shortcutFor(SHORTCUTS, "g l")?.page, "layers");
  assert.equal(shortcutFor(SHORTCUTS, "="), shortcutFor(SHORTCUTS, "+"));
  assert.equal(shortcutFor(SHORTCUTS, "ArrowLeft"), null, "a figure's own");
  assert.equal(shortcutFor(SHORTCUTS, "x"), null);
  assert.equal(keyOf("zoom-in"), "+");
});

test("a letter that begins a pair is no key by itself", () => {
  const begins = new Set(SHORTCUTS.flatMap(({ keys }) => keys.filter((key) => key.includes(" ")).map((key) => key[0])));
  assert.deepEqual([...begins].map((key) => shortcutFor(SHORTCUTS, key)), [null]);
});

test("a page has an entry with a shortcut and a hint, or is under one that has", () => {
  const listed = new Set(PAGES.filter(({ under }) => !under).map(({ id }) => id));
  assert.equal(new Set(PAGES.map(({ id }) => id)).size, PAGES.length);
  assert.equal(new Set(PAGES.map(({ path }) => path)).size, PAGES.length);
  for (const { id, key, help, under } of PAGES) {
    if (under) assert.ok(listed.has(under) && !key, id);
    else assert.ok(help && shortcutFor(SHORTCUTS, `g ${key}`)?.page === id, id);
  }
});
