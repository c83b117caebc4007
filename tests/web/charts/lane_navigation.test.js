// Where a click leads is decided by what the figure was asked for, not by choices in the address that it does not show.

import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";

import { formatState, parseState } from "../../../web/api/url_state.js";
import { around, createNavigator, shownState } from "../../../web/charts/lanes/lane_navigation.js";

/** As the page Layers leaves it. */
const CARRIED = "?rank=3&tensor=9&start=5&stop=90&kind=grad&q=ff&statistic=zero_fraction&axes=step%2Crank";
const PLACE = { step: 7, rank: 1, tensor: 4 };
const GRID = { x0: 0, dx: 1, columns: 100, meta: { steps_per_column: 1 } };
const spot = (more = {}) => ({ step: 7, row: 0, shift: false, ...more });

/** What was asked of the server, and where the page went. @type {string[]} */
let asked = [];
/** @type {string[]} */
let went = [];

/** @param {string} [search] */
const navigator = (search = CARRIED) =>
  createNavigator(/** @type {any} */ ({ params: { id: "1" }, state: parseState(search), navigate: (/** @type {string} */ path) => went.push(path), setState: () => assert.fail("no change of this page"), say: assert.fail }));

/** @param {string} name @param {object | null} query null: it asks for nothing @param {object} [row] */
const lane = (name, query, row = {}) => /** @type {any} */ ({ spec: { name }, options: query ? { query: () => query } : {}, view: { run: { last_step: 1000 } }, model: { ...GRID, rows: [row] }, rows: () => [row] });

beforeEach(() => {
  asked = [];
  went = [];
  mock.method(globalThis, "fetch", async (/** @type {string} */ path) => {
    asked.push(path);
    return Response.json(PLACE);
  });
});

afterEach(() => mock.restoreAll());

/** @param {() => void} click */
async function after(click) {
  click();
  await new Promise((resolve) => setTimeout(resolve));
}

test("a lane that asks for nothing is of all ranks and tensors", async () => {
  await after(() => navigator().pick(lane("loss", null), spot({ row: null })));
  assert.deepEqual(asked, ["/api/v1/runs/1/locate?start=7&stop=8&rank=all"]);
  assert.deepEqual(went, ["/runs/1/step?step=7&rank=1&tensor=4&start=5&stop=90"]);
});

test("layers of all ranks are looked up on all ranks, whatever was chosen elsewhere", async () => {
  await after(() => navigator().pick(lane("layers", { rank: "all" }, { tensor: 4 }), spot()));
  await after(() => navigator().pickCell(lane("layers", { rank: "all" }, { tensor: 4 }), /** @type {any} */ ({ row: 0, column: 7 })));
  assert.deepEqual(asked, Array(2).fill("/api/v1/runs/1/locate?start=7&stop=8&rank=all&tensor=4"));
});

test("what a figure was asked for is what is looked up", async () => {
  await after(() => navigator().pick(lane("layers", { rank: 3, kind: ["grad"], q: "ff", statistic: "" }, { tensor: 4 }), spot()));
  await after(() => navigator().pick(lane("tensor", { rank: "all", tensor: 2 }), spot({ row: null })));
  assert.deepEqual(asked, ["/api/v1/runs/1/locate?start=7&stop=8&rank=3&tensor=4&kind=grad&q=ff", "/api/v1/runs/1/locate?start=7&stop=8&rank=all&tensor=2"]);
});

test("a rank leads to its layers, and on the page of layers to the step", async () => {
  await after(() => navigator().pick(lane("timeline", null, { rank: 2 }), spot()));
  assert.deepEqual([asked, went], [[], ["/runs/1/layers?rank=2&start=0&stop=58"]]);
  await after(() => navigator("?axes=step%2Crank").pick(lane("timeline", { rank: "all", kind: [], q: "", tensor: null }, { rank: 2 }), spot()));
  assert.deepEqual([asked, went[1]], [["/api/v1/runs/1/locate?start=7&stop=8&rank=2"], "/runs/1/step?step=7&rank=1&tensor=4"]);
});

test("a name leads to that layer as it was seen", () => {
  navigator().pickLabel(lane("layers", { rank: "all" }, { tensor: 4 }), 0);
  navigator("?rank=all&kind=grad&q=ff").pickLabel(lane("layers", { rank: "all", kind: ["grad"], q: "ff", statistic: "" }, { tensor: 4 }), 0);
  navigator().pickLabel(lane("timeline", null, { rank: 2 }), 0);
  assert.deepEqual(went, ["/runs/1/layers?rank=all&tensor=4&start=5&stop=90", "/runs/1/layers?rank=all&tensor=4&kind=grad&q=ff", "/runs/1/layers?rank=2&tensor=9&start=5&stop=90"]);
});

test("a choice that a figure was not asked for is not taken along", () => {
  const state = parseState(CARRIED);
  assert.equal(formatState(shownState(state, { rank: "all" })), "?rank=all&tensor=9&start=5&stop=90");
  assert.equal(formatState(shownState(state, { rank: 3, kind: ["grad"], q: "ff", statistic: "zero_fraction" })), "?rank=3&tensor=9&start=5&stop=90&kind=grad&q=ff&statistic=zero_fraction");
  assert.equal(formatState(shownState(parseState(""), { rank: "all" })), "");
});

test("the steps around a clicked one end where the run does", () => {
  assert.deepEqual(around({ start: 396, stop: 397 }, 1, 399), { start: 346, stop: 400 });
  assert.deepEqual(around({ start: 10, stop: 11 }, 1, 399), { start: 0, stop: 61 });
  assert.deepEqual(around({ start: 64, stop: 128 }, 64, null), { start: 0, stop: 1152 });
});
