
import assert from "node:assert/strict";
import { test } from "node:test";

import { CARDS, WAITS, cardRow, readWaits } from "../../../web/pages/overview/overview_lanes.js";

const NO = NaN;
const waits = () => readWaits(/** @type {any} */ ({
  figure: { data: [{ name: "wait_s", x0: 10, dx: 1, z: [[0.03, NO], [0, 0.002]] }] },
  meta: { start: 10, stop: 12, steps_per_column: 1, note: "", rows: [{ label: "rank 0", rank: 0, count: 1 }, { label: "rank 1", rank: 1, count: 1 }], cost_to_others_s: [[0, NO], [0.03, 0]] },
}));

test("a wait has a place on the calm-to-hot scale, and what is not known a pattern", () => {
  const z = [0, 1e-4, 0.01, 1, 60, NO];
  const cells = WAITS.cells?.({ z }, /** @type {any} */ ({ scales: {} }));
  assert.deepEqual([cells?.z, cells?.low, cells?.high], [[0, 0, 0.5, 1, 1, NO], 0, 1]);
  assert.deepEqual(cells?.states, [0, 0, 0, 0, 0, 5]);
});

test("who waited, and for whom", () => {
  const model = waits();
  assert.equal(model.columns, 2);
  assert.equal(WAITS.isEmpty(model), false);
  assert.equal(WAITS.readout(model, 10, null), "rank 0 waited 30 ms; for rank 1 most, 30 ms of all the others");
  assert.equal(WAITS.readout(model, 10, 1), "rank 1 waited 0 ms; for rank 1 most, 30 ms of all the others");
  assert.equal(WAITS.readout(model, 11, 0), "rank 0: not known");
  assert.equal(WAITS.readout(model, 11, null), "rank 1 waited 2 ms");
  assert.equal(WAITS.readout(model, 99, null), "");
});

test("without any wait there is no lane", () => {
  const none = readWaits(/** @type {any} */ ({ figure: { data: [{ z: [[NO, NO]] }] }, meta: { rows: [{ label: "rank 0" }] } }));
  assert.equal(WAITS.isEmpty(none), true);
});

const lanes = (/** @type {any} */ values, events = /** @type {any[]} */ ([])) => /** @type {any} */ ({
  rank: 1, key: "GPU-1", about: {}, times_ns: [0, 1e9, 2e9, 3e9], steps: [0, 1, 2, 3], merge: {}, events, values,
});
const CARD = /** @type {any} */ ({ rank: 1, device_index: 0 });

test("a card's row tells calm from slowed from gone, and what was said", () => {
  const xid = { kind: "xid", step: 2, time_ns: 2e9, message: "Xid 79", data: {} };
  const row = cardRow(CARD, lanes({ throttle_reasons: [4, 64, 0, 0], present: [1, 1, 1, 0], temperature_c: [50, 88, 60, null], utilization_gpu_percent: [97, 20, 0, null] }, [xid]), { 64: "HW thermal slowdown" });
  assert.deepEqual(row.bands.map(({ style, from, to }) => [style, from, to]), [["calm", -0.5, 0.5], ["warning", 0.5, 1.5], ["bad", 2.5, 3.5]]);
  assert.deepEqual(row.known, [{ from: 0, to: 3 }]);
  const model = { rows: [row], dx: 1, meta: {}, isKnown: true };
  assert.equal(CARDS.readout(model, 1, null), "rank 1, cuda:0: HW thermal slowdown, 88 °C, 20 % busy");
  assert.equal(CARDS.readout(model, 0, null), "no GPU throttled");
  assert.equal(CARDS.readout(model, 2, null), "rank 1, cuda:0: Xid 79, 60 °C, 0 % busy");
  assert.equal(CARDS.readout(model, 3, 0), "rank 1, cuda:0: does not answer");
  assert.equal(CARDS.readout(model, 9, 0), "rank 1, cuda:0: no sample");
  assert.equal(CARDS.readout(model, 9, null), "no sample");
});

test("a hole in the samples is shown as one", () => {
  const row = cardRow(CARD, { ...lanes({ throttle_reasons: [0, 0, 0, 0] }), steps: [0, 1, 50, 51] }, {});
  assert.deepEqual(row.known, [{ from: 0, to: 1 }, { from: 50, to: 51 }]);
});
