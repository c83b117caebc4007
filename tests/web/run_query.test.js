// The list of runs in the address.

import assert from "node:assert/strict";
import { test } from "node:test";

import { asked, nextSort, pages, parseRunQuery, runsPath, sortedBy } from "../../web/api/run_query.js";
import { seenText } from "../../web/pages/runs/runs.js";

test("an address is read and written alike", () => {
  for (const path of ["/", "/?q=a%26b&sort=name&archived=only&offset=100", "/?before=7", "/?archived=all"]) {
    assert.equal(runsPath(parseRunQuery(path.slice(1))), path);
  }
});

test("what makes no sense is left out", () => {
  assert.equal(runsPath(parseRunQuery("?sort=size&archived=maybe&before=-1&offset=1e9&x=y&sort=newest")), "/");
  assert.equal(runsPath(parseRunQuery("?sort=toString")), "/");
});

test("archived runs are not asked for unless wanted", () => {
  assert.equal(asked(parseRunQuery("")).archived, "false");
  assert.equal(asked(parseRunQuery("?archived=only")).archived, "true");
  assert.equal(asked(parseRunQuery("?archived=all")).archived, "");
});

test("the newest go on before a run, other orders by how many were shown", () => {
  const query = parseRunQuery("?q=a");
  assert.deepEqual(pages(query, { runs: [1, 2], next: 5, total: 9 }), { first: null, more: "/?q=a&before=5" });
  const byName = parseRunQuery("?q=a&sort=name&offset=2");
  assert.deepEqual(pages(byName, { runs: [1, 2], next: null, total: 5 }), { first: "/?q=a&sort=name", more: "/?q=a&sort=name&offset=4" });
  assert.deepEqual(pages(byName, { runs: [1, 2], next: null, total: 4 }).more, null);
});

test("a column's name asks for its order, and pressed again for the next", () => {
  assert.deepEqual([nextSort("Run", ""), nextSort("Age", ""), nextSort("Age", "oldest"), nextSort("Age", "name"), nextSort("Ranks", "")], ["name", "oldest", "", "", null]);
  assert.deepEqual([sortedBy("Age", ""), sortedBy("Age", "oldest"), sortedBy("Run", "name"), sortedBy("State", "seen"), sortedBy("Run", "")], ["ascending", "descending", "ascending", "descending", null]);
});

test("every run that is not live says when it was seen last", () => {
  const text = (/** @type {import("../../web/types.js").RunState} */ state) => seenText({ state, last_seen_ns: 0 }, 120e9);
  assert.equal(text("live"), "");
  for (const state of /** @type {const} */ (["failed", "died", "terminated", "stale", "finished", "empty"])) assert.equal(text(state), " seen 2 min ago");
});
