
import assert from "node:assert/strict";
import { test } from "node:test";

import { cellOf, cellText, closedWithout, columnSteps, readHeatmap, worstRow, worstRows } from "../../../web/charts/heatmap.js";
import { around, tensorsOf } from "../../../web/charts/lanes/lane_navigation.js";
import { choiceOf, ticksOf, valueText, worstTitle } from "../../../web/charts/statistics.js";
import { keyLeads, outermost, toggled, visibleItems } from "../../../web/pages/layers/module_tree.js";

/** @param {string} path @param {Partial<import("../../../web/types.js").Module>} [more] */
const module = (path, more = {}) => ({ path, depth: path.split(".").length - 1, count: 2, tensor: null, state: "value", worst: 5, has_children: false, hidden_children: 0, ...more });

const TREE = [
  module("a", { count: 6, has_children: true }), module("a.10", { worst: 3 }), module("a.10.ff", { count: 1, tensor: 7 }),
  module("a.2", { worst: 4, state: "inf" }), module("b", { worst: 1 }),
];
const names = (/** @type {import("../../../web/pages/layers/module_tree.js").Item[]} */ items) => items.map((item) => item.path);

test("nothing inside a closed module is seen, and names are those within it", () => {
  assert.deepEqual(names(visibleItems(TREE, "", [])), ["a", "a.10", "a.10.ff", "a.2", "b"]);
  const shut = visibleItems(TREE, "", ["a.10"]);
  assert.deepEqual(names(shut), ["a", "a.10", "a.2", "b"]);
  assert.deepEqual(shut.map((item) => item.name), ["a", "10", "2", "b"]);
  assert.equal(shut[1].isClosed, true);
  assert.equal(visibleItems(TREE, "", [])[2].isGroup, false);
});

test("modules beside each other are sorted by name or by the worst in them", () => {
  assert.deepEqual(names(visibleItems(TREE, "name", [])), ["a", "a.2", "a.10", "a.10.ff", "b"]);
  assert.deepEqual(names(visibleItems(TREE, "worst", [])), ["b", "a", "a.2", "a.10", "a.10.ff"]);
  const most = [module("x", { worst: 1 }), module("y", { worst: 9 }), module("z", { worst: null })];
  assert.deepEqual(names(visibleItems(most, "worst", [], "most")), ["y", "x", "z"]);
});

test("what is folded is opened without another figure, and is not closed", () => {
  const items = visibleItems(TREE, "", [], "least", ({ path }) => path === "a");
  assert.deepEqual(items.map(({ path, isClosed, isFolded }) => [path, isClosed, isFolded]), [["a", false, false], ["a.10", true, true], ["a.2", true, true], ["b", true, true]]);
});

test("a change is bad to either side, and says which", () => {
  const change = /** @type {any} */ ({ name: "amax_change", scale: "change", worst: "furthest", low: -8, high: 8 });
  assert.equal(valueText(change, 3.25), "+3.3 bits");
  assert.equal(valueText(change, -12), "−12.0 bits");
  assert.deepEqual(ticksOf(change).map(({ at, text }) => [at, text]), [[0, "−8 bits"], [0.25, "−4"], [0.5, "usual"], [0.75, "+4"], [1, "+8 bits"]]);
  const model = /** @type {any} */ ({ rows: [{}, {}, {}], columns: 2, z: [1, 2, -5, NaN, 4, 4], states: [0, 0, 0, 0, 0, 0], statistic: change });
  assert.deepEqual(worstRows(model, 3).map(({ row }) => row), [1, 2, 0]);
  assert.equal(worstRow(model), 1);
  assert.equal(worstRow({ ...model, states: [0, 0, 0, 0, 0, 3] }), 2);
  assert.equal(worstRow({ ...model, states: [0, 3, 0, 0, 2, 3] }), 2, "the row that was first");
});

test("a click near the end does not lead past it", () => {
  const model = /** @type {any} */ ({ x0: 3.5, dx: 8, columns: 51, meta: { stop: 402 } });
  assert.deepEqual(columnSteps(model, 50), { start: 400, stop: 402 });
  assert.deepEqual(around({ start: 360, stop: 362 }, 2, 399), { start: 310, stop: 400 });
  assert.deepEqual(around({ start: 10, stop: 11 }, 1, null), { start: 0, stop: 61 });
});

test("a block that the server closed opens alone", () => {
  const model = /** @type {any} */ ({ meta: { closed: ["a.0", "a.1"] } });
  assert.deepEqual(closedWithout([], model, "a.0"), ["a.1"]);
  assert.deepEqual(closedWithout([], /** @type {any} */ ({ meta: { closed: ["a.0"] } }), "a.0"), ["."]);
  assert.deepEqual(closedWithout(["a.0"], null, "a.0"), []);
});

test("arrow keys walk the tree as a tree", () => {
  const items = visibleItems(TREE, "", ["a.10"]);
  assert.equal(keyLeads(items, 0, "ArrowDown"), 1);
  assert.equal(keyLeads(items, 0, "ArrowUp"), 0);
  assert.equal(keyLeads(items, 0, "ArrowRight"), 1);
  assert.equal(keyLeads(items, 1, "ArrowRight"), "open");
  assert.equal(keyLeads(items, 1, "ArrowLeft"), 0);
  assert.equal(keyLeads(items, 0, "ArrowLeft"), "close");
  assert.equal(keyLeads(items, 0, "End"), 3);
  assert.equal(keyLeads(items, 3, "ArrowRight"), null);
  assert.equal(keyLeads([], 0, "ArrowDown"), null);
});

test("a module closes and opens, and a lone root is not what all are closed to", () => {
  assert.deepEqual(toggled(["a"], "b"), ["a", "b"]);
  assert.deepEqual(toggled(["a", "b"], "a"), ["b"]);
  assert.deepEqual(outermost(TREE), ["a", "b"]);
  assert.deepEqual(outermost([module("m", { count: 4 }), module("m.0"), module("m.1"), module("m.2", { count: 1 })]), ["m.0", "m.1"]);
  assert.deepEqual(outermost([module("m", { count: 2 }), module("m.0", { count: 1 }), module("m.1", { count: 1 })]), ["m"]);
  const root = module("", { count: 3 });
  assert.deepEqual(visibleItems([root, module("a")], "", []).map(({ name, isGroup }) => [name, isGroup]), [["(model)", false], ["a", true]]);
  assert.deepEqual(outermost([root, ...TREE]), ["a", "b"], "the model's own tensors are no module of it");
  assert.equal(toggled(Array.from({ length: 200 }, (_, i) => `m${i}`), "new").length, 200);
});

test("values are said in the unit of the statistic", () => {
  const of = (/** @type {any} */ scale) => ({ name: "", title: "", scale, worst: /** @type {const} */ ("most"), low: 0, high: 1 });
  assert.equal(valueText(null, 5.12), "5.1 bits");
  assert.equal(valueText(of("log2"), 10), "1.02e3");
  assert.equal(valueText(of("fraction"), 0.12345), "12.3 %");
  assert.equal(valueText(of("count"), 2), "3 elements");
  assert.equal(valueText(of("count"), 0), "0 elements");
  assert.equal(valueText(of("fraction"), NaN), "not measured");
  assert.equal(worstTitle(null), "least headroom");
  assert.deepEqual(ticksOf({ ...of("log2"), low: -24, high: 16 }).map(({ at, text }) => [at, text]), [[0, "2⁻²⁴"], [0.25, "2⁻¹⁴"], [0.6, "2⁰"], [0.8, "2⁸"], [1, "2¹⁶"]]);
});

test("a choice of a run by its name, and headroom without one", () => {
  const run = { derived: [{ name: "headroom_bits", title: "Headroom", aka: "", help: "" }, { name: "amax", title: "Largest magnitude", aka: "", help: "" }] };
  assert.equal(choiceOf(run, "")?.title, "Headroom");
  assert.equal(choiceOf(run, "amax")?.title, "Largest magnitude");
  assert.equal(choiceOf(run, "nope"), null);
  assert.equal(choiceOf({}, ""), null);
});

const base64 = (/** @type {ArrayBufferView} */ array) => Buffer.from(array.buffer).toString("base64");
const heat = (/** @type {any} */ statistic, /** @type {number[]} */ z, /** @type {number[]} */ states) => readHeatmap(/** @type {any} */ ({
  figure: { data: [{ x0: 0, dx: 1, z: { dtype: "f4", bdata: base64(Float32Array.from(z)) } }] },
  meta: { statistic, rows: z.map((_, i) => ({ label: `r${i}`, count: 1 })), states: { dtype: "u1", bdata: base64(Uint8Array.from(states)) } },
}));

test("the worst of a statistic is at its own end, and NaN or Inf before it", () => {
  const amax = heat({ name: "amax", title: "Largest magnitude", scale: "log2", worst: "most", low: -24, high: 16 }, [1, 9, NaN, NaN], [0, 0, 3, 0]);
  assert.deepEqual(worstRows(amax, 4).map((cell) => amax.rows[cell.row].label), ["r2", "r1", "r0", "r3"]);
  assert.deepEqual(worstRows(amax, 4).map(cellText), ["NaN", "5.12e2", "2.00e0", "not measured"]);
  const count = heat({ name: "nonfinite_count", title: "", scale: "count", worst: "most", low: 0, high: 24 }, [0, 2], [0, 2]);
  assert.equal(cellText(cellOf(count, 1, 0)), "Inf, 3 elements");
  const headroom = heat({ name: "headroom_bits", title: "Headroom", scale: "bits", worst: "least", low: 0, high: 16 }, [4, 2], [0, 0]);
  assert.equal(headroom.statistic, null);
  assert.equal(cellText(cellOf(headroom, 1, 0)), "2.0 bits");
});

test("a row says which tensors it stands for, or that it cannot", () => {
  const row = { label: "", count: 2, tensor: null, tensors: /** @type {[number, number]} */ ([3, 9]), rank: null };
  assert.deepEqual(tensorsOf(row), { tensor: "3-9" });
  assert.deepEqual(tensorsOf({ ...row, tensor: 3 }), { tensor: 3 });
  assert.deepEqual(tensorsOf({ ...row, module: "a.b" }), { module: "a.b" });
  assert.deepEqual(tensorsOf({ ...row, listed: [3, 9, 4] }), { tensor: "3,9,4" });
  assert.equal(tensorsOf({ ...row, listed: [] }), null);
});
