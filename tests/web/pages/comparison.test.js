// Comparisons: what either side holds, in words; which layer has lost most; the outline of a spread over ranks.

import assert from "node:assert/strict";
import { test } from "node:test";

import { STATE } from "../../../web/charts/statistics.js";
import { comparisonReadout, difference, differenceText, hindrance, notesOf, parseAgainst, readComparison, sidesOf, worstRow } from "../../../web/pages/layers/comparison_model.js";
import { PERCENTILES, band, percentileTitle } from "../../../web/pages/layers/tensor_panel.js";
import { alertsOn } from "../../../web/widgets/tensor_details.js";

/** @param {Float32Array | Uint8Array} values */
function typed(values) {
  const dtype = values instanceof Float32Array ? "f4" : "u1";
  return { dtype, bdata: Buffer.from(values.buffer).toString("base64"), shape: "2, 3" };
}

const NONE = NaN;
const SIDES = { here: "on rank 0", there: "on rank 2" };
/** Two tensors, three steps from step 10. */
const ANSWER = {
  figure: { data: [{ type: "heatmap", x0: 10, dx: 1, z: typed(Float32Array.of(-2, 0.5, NONE, 1, NONE, NONE)) }] },
  meta: {
    start: 10, stop: 13, steps_per_column: 1, note: "", nonfinite_columns: [1],
    rows: [{ label: "a output", count: 1, tensor: 0, tensors: [0, 0] }, { label: "b output", count: 2, tensor: null, tensors: [1, 2] }],
    states: typed(Uint8Array.of(0, 1, 0, 0, STATE.nan, 0)), other_states: typed(Uint8Array.of(0, 0, STATE.notObserved, 0, 0, 0)),
    bits: typed(Float32Array.of(5, 0.5, 3, 4, NONE, 2)), against: { kind: "rank", number: 2 },
  },
};
const model = readComparison(/** @type {any} */ (ANSWER));

test("a difference has both sides' headroom beside it", () => {
  assert.equal(differenceText(model, 0, 0, SIDES), "2.0 bits less: 5.0 bits on rank 0, 7.0 bits on rank 2");
  assert.equal(differenceText(model, 0, 1, SIDES), "0.50 bits more: 0.50 bits on rank 0, 0.0 bits on rank 2");
  assert.deepEqual([difference(0.001), difference(null)], ["the same", "no difference"]);
});

test("where a side has none the words say which, and what it has", () => {
  assert.equal(differenceText(model, 0, 2, SIDES), "value on rank 0, not observed on rank 2");
  assert.equal(differenceText(model, 1, 1, SIDES), "NaN on rank 0, value on rank 2");
  assert.equal(differenceText(model, 1, 2, SIDES), "never both at once"); // two tensors, each seen on another side
});

test("what is drawn in place of a difference is the worse of two states, saturated being a value", () => {
  assert.deepEqual([...Array.from(model.states)], [0, 0, STATE.notObserved, 0, STATE.nan, 0]);
  assert.equal(hindrance(STATE.inf, STATE.notObserved), STATE.inf);
  assert.equal(hindrance(STATE.zero, STATE.stale), STATE.zero);
});

test("of a column the greatest loss is read out, and first what broke here alone", () => {
  assert.deepEqual([worstRow(model, 0), worstRow(model, 1), worstRow(model, 2)], [0, 1, null]);
  assert.equal(comparisonReadout(model, 11, null, SIDES), "b output (worst of 2): NaN on rank 0, value on rank 2");
  assert.equal(comparisonReadout(model, 10, 1, SIDES), "b output (worst of 2): 1.0 bits more: 4.0 bits on rank 0, 3.0 bits on rank 2");
  assert.equal(comparisonReadout(model, 12, null, SIDES), "nothing to compare here");
});

test("without another side nothing is drawn", () => {
  const empty = readComparison(/** @type {any} */ ({ figure: { data: [] }, meta: { start: 0, stop: 1, steps_per_column: 1, note: "", against: null } }));
  assert.deepEqual([empty.rows.length, empty.columns], [0, 0]);
});

test("either side is named after what was asked for", () => {
  assert.deepEqual(sidesOf(parseAgainst("rank:2"), "all"), { here: "worst of all ranks", there: "on rank 2" });
  assert.deepEqual(sidesOf(parseAgainst("step:1200"), 0), { here: "here", there: "at step 1,200" });
  assert.deepEqual(sidesOf(parseAgainst("run:7"), null), { here: "in this run", there: "in run 7" });
  assert.equal(parseAgainst(""), null);
});

test("what is on one side only, and steps that one side lacks, are said", () => {
  const against = /** @type {const} */ ({ kind: "run", number: 7, run: "b", ranks: 1, first_step: 0, last_step: 119 });
  const shared = /** @type {any} */ ({ against, first_step: 0, last_step: 199, matched: 4 });
  const notes = notesOf({ ...shared, only_here: { count: 60, labels: ["a", "b"] }, only_there: { count: 1, labels: ["<b>"] } });
  assert.deepEqual(notes, [
    "This run has steps 0-199, run 7 steps 0-119: a step that one of them lacks is not observed there.",
    "In this run only: 60 tensors (a, b and 58 more).",
    "In run 7 only: 1 tensor (<b>).",
  ]);
  assert.deepEqual(notesOf({ ...shared, last_step: 119, only_here: { count: 0, labels: [] } }), []);
  assert.deepEqual(notesOf({ ...shared, against: { ...against, first_step: null, last_step: null } }), ["Run 7 has no step yet."]);
});

test("a spread over ranks is an outline for each stretch without a hole", () => {
  const line = (/** @type {number[]} */ y) => ({ name: "", x: [0, 1, 5], y, last: null });
  const { x, y } = band(line([1, 2, 3]), line([4, 5, 6]), 1);
  assert.deepEqual(x, [0, 1, 1, 0, NaN, 5, 5, NaN]);
  assert.deepEqual(y, [4, 5, 2, 1, NaN, 6, 3, NaN]);
});

test("where no rank was observed nothing is said of its headroom", () => {
  const model = (/** @type {object} */ meta) => ({ series: [], markSteps: [], meta: { steps_per_column: 1, ...meta } });
  assert.equal(PERCENTILES.readout(model({ observed_ranks: 0 }), 3, null), "not observed on any rank");
  assert.equal(PERCENTILES.readout(model({ observed_ranks: 2 }), 3, null), "not observed on any rank, or all zero");
});

test("a run with one rank says that it has no spread", () => {
  assert.match(percentileTitle({ ranks: 1, observed_ranks: 1 }), /one rank/);
  assert.equal(percentileTitle({ ranks: 4, observed_ranks: 3 }), "Headroom over 4 ranks, observed on 3");
});

test("alerts of another tensor or kind are not this one's", () => {
  const alert = (/** @type {string | null} */ tensor, /** @type {string | null} */ kind) => /** @type {any} */ ({ finding: { tensor, kind } });
  const alerts = [alert("a", "output"), alert("a", null), alert("a", "grad"), alert("b", "output"), alert(null, null)];
  assert.deepEqual(alertsOn(alerts, /** @type {any} */ ({ fqn: "a", kind: "output" })), alerts.slice(0, 2));
});
