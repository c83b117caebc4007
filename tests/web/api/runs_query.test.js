// The list of runs in the address.

import assert from "node:assert/strict";
import { test } from "node:test";

import { SORTS, asked, nextSort, pages, parseRunQuery, runsPath, sortedBy } from "../../../web/api/run_query.js";
import { linePath } from "../../../web/pages/runs/sparkline.js";
import { halves, lastSeenText, ticked } from "../../../web/pages/runs/runs_table.js";

test("an address is read and written alike", () => {
  for (const path of ["/", "/?q=a%26b&sort=name&archived=only&offset=100", "/?before=7", "/?archived=all", "/?sort=-loss&state=trouble&picked=3,1"]) {
    assert.equal(runsPath(parseRunQuery(path.slice(1))), path);
  }
});

test("what makes no sense is left out", () => {
  assert.equal(runsPath(parseRunQuery("?sort=size&archived=maybe&before=-1&offset=1e9&x=y&sort=newest")), "/");
  assert.equal(runsPath(parseRunQuery("?sort=toString&state=valueOf&picked=x,1e3")), "/");
  assert.deepEqual(parseRunQuery("?picked=3,3,1,a,-2,4,5,6,7,8,9,10").picked, [3, 1, 4, 5, 6, 7, 8, 9]);
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

test("a list by state goes on by how many were shown", () => {
  const hung = parseRunQuery("?state=hung&offset=2");
  assert.deepEqual(asked(hung), { q: "", sort: "", down: "", state: ["hung"], archived: "false", before: "", offset: "2" });
  assert.equal(pages(hung, { runs: [1, 2], next: null, total: 5 }).more, "/?state=hung&offset=4");
});

test("a falling order is sent as an order and its way", () => {
  const { sort, down } = asked(parseRunQuery("?sort=-step"));
  assert.deepEqual([sort, down], ["step", "true"]);
});

test("a column's name asks for its order, and pressed again for the other way round", () => {
  assert.deepEqual([nextSort("Run", ""), nextSort("Run", "name"), nextSort("Age", ""), nextSort("Age", "oldest"), nextSort("Age", "name"), nextSort("", "")], ["name", "-name", "oldest", "", "", null]);
  assert.deepEqual([nextSort("State", ""), nextSort("Seen", ""), nextSort("Step", "")], ["state", "seen", "-step"]);
  assert.deepEqual([sortedBy("Age", ""), sortedBy("Age", "oldest"), sortedBy("Run", "name"), sortedBy("State", "state"), sortedBy("State", "seen"), sortedBy("Step", "-step"), sortedBy("Run", "")], ["ascending", "descending", "ascending", "ascending", null, "descending", null]);
});

test("every column of the list sorts it, and every order has its text", () => {
  for (const column of ["Run", "State", "Verdict", "Loss", "Step", "Ranks", "Headroom", "Skipped", "Scale", "Seen", "Age"]) {
    const first = /** @type {string} */ (nextSort(column, "none"));
    const second = /** @type {string} */ (nextSort(column, first));
    assert.notEqual(first, second);
    for (const sort of [first, second]) assert.ok(sort === "" || SORTS[sort], sort);
  }
});

test("a ninth run is not ticked, and a tick is taken away", () => {
  assert.deepEqual([ticked([1, 2], 3), ticked([1, 2], 1), ticked([1, 2, 3, 4, 5, 6, 7, 8], 9)], [[1, 2, 3], [2], [1, 2, 3, 4, 5, 6, 7, 8]]);
});

test("a long name keeps its end, and no letter is lost", () => {
  assert.deepEqual(halves("short-name"), ["short-name", ""]);
  const name = "llama-7b-bf16-sweep-learning-rate-\u{1F525}0.0003-seed-17";
  const [head, tail] = halves(name);
  assert.equal(head + tail, name);
  assert.equal(Array.from(tail).length, 10);
});

test("a sparkline spans its height and has holes where nothing was logged", () => {
  assert.equal(linePath([1, null, 3, 2], (i) => i), "M0.0 18.0M2.0 2.0L3.0 10.0");
  assert.equal(linePath([5, 5], (i) => i), "M0.0 10.0L1.0 10.0");
});

test("every run that is not live says when it was seen last", () => {
  const text = (/** @type {import("../../../web/types.js").RunState} */ state) => lastSeenText({ state, last_seen_ns: 0 }, 120e9);
  assert.equal(text("live"), "");
  for (const state of /** @type {const} */ (["failed", "died", "terminated", "stale", "finished", "empty"])) assert.equal(text(state), "2 min ago");
});
