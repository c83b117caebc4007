
import assert from "node:assert/strict";
import { test } from "node:test";

import { SCALES } from "../../../web/charts/colours.js";
import { heatOf } from "../../../web/charts/statistics.js";
import { cellOf, cellText, columnAt, columnSteps, readHeatmap, worstRows } from "../../../web/charts/heatmap.js";
import { broken, cadenceNote, mergedSteps, nearLimits, octaves, powerTicks, readLines, smoothed, valueAt, valueAxis } from "../../../web/charts/lines.js";
import { decode } from "../../../web/format/typed_array.js";
import { magnitudeSpan } from "../../../web/pages/step/frames_table.js";
import { extremes } from "../../../web/pages/tensor/tensor.js";

const base64 = (/** @type {ArrayBufferView} */ array) => Buffer.from(array.buffer).toString("base64");
const spec = (/** @type {string} */ dtype, /** @type {any} */ array) => ({ dtype, bdata: base64(array) });
const row = (/** @type {string} */ label) => ({ label, count: 1, tensor: 0, tensors: null, rank: null });

/** 3 rows, 2 columns of 64 steps each. */
const HEAT = readHeatmap(/** @type {any} */ ({
  figure: { data: [{ x0: 31.5, dx: 64, z: spec("f4", Float32Array.of(5, 4, NaN, 0.5, NaN, NaN)) }] },
  meta: { rows: [row("calm"), row("hot"), row("hidden")], states: spec("u1", Uint8Array.of(0, 0, 2, 1, 5, 5)), nonfinite_columns: [0] },
}));

test("typed arrays decode, lists with null become NaN", () => {
  assert.deepEqual([...Array.from(decode(spec("f4", Float32Array.of(1.5, -2))))], [1.5, -2]);
  assert.deepEqual(Array.from(decode([1, null])), [1, NaN]);
  assert.deepEqual(Array.from(decode(undefined)), []);
  assert.throws(() => decode({ dtype: "q9", bdata: "" }), /q9/);
});

test("cells, columns and the steps behind them", () => {
  assert.equal(cellOf(HEAT, 1, 1).bits, 0.5);
  assert.equal(columnAt(HEAT, 64), 1);
  assert.equal(columnAt(HEAT, 400), null);
  assert.deepEqual(columnSteps(HEAT, 0), { start: 0, stop: 64 });
  assert.deepEqual(columnSteps(HEAT, 1), { start: 64, stop: 128 });
  assert.deepEqual(HEAT.markSteps, [31.5]);
});

test("the worst rows come first, and what was not observed is never called clean", () => {
  const rows = worstRows(HEAT, 3);
  assert.deepEqual(rows.map((cell) => HEAT.rows[cell.row].label), ["hot", "calm", "hidden"]);
  assert.deepEqual(rows.map(cellText), ["Inf", "4.0 bits", "not observed"]);
  assert.equal(cellText(cellOf(HEAT, 1, 1)), "saturated, 0.50 bits");
});

test("of the rows that broke, the one that broke first leads, whether by NaN or by Inf", () => {
  const heat = readHeatmap(/** @type {any} */ ({
    figure: { data: [{ x0: 0, dx: 1, z: spec("f4", Float32Array.of(NaN, NaN, NaN, NaN, NaN, NaN, 1, 1, 1)) }] },
    meta: { rows: [row("late nan"), row("early inf, then nan"), row("finite")], states: spec("u1", Uint8Array.of(4, 4, 3, 4, 2, 3, 0, 0, 0)), nonfinite_columns: [] },
  }));
  assert.deepEqual(worstRows(heat, 3).map((cell) => heat.rows[cell.row].label), ["early inf, then nan", "late nan", "finite"]);
  assert.equal(worstRows(heat, 1)[0].column, 1);
});

test("a tensor's non-finite steps lead, then its largest", () => {
  const amax = { name: "", x: [0, 8, 16], y: [4, 8, 2] };
  const model = { series: [amax, { ...amax, x: [8], y: [1] }, { ...amax, x: [16], y: [9] }], markSteps: [], meta: /** @type {any} */ ({ steps_per_column: 8, limits: { max_finite: 16 }, steps: { amax: [1, null, 17], "non-finite": [19] } }) };
  assert.deepEqual(extremes(model, 3), [
    { step: 16, at: 19, amax: 2, amin: null, headroom: 3, nonfinite: true },
    { step: 8, at: null, amax: 8, amin: 1, headroom: 1, nonfinite: false },
    { step: 0, at: 1, amax: 4, amin: null, headroom: 2, nonfinite: false },
  ]);
  assert.deepEqual(mergedSteps(model, 15), { start: 8, stop: 16 });
});

test("the colour scale is the fixed one", () => {
  assert.deepEqual(SCALES.headroom.map(([at]) => at * 16), [0, 1, 2, 4, 6.4, 9.6, 16]);
  assert.deepEqual([0, 0.99, 1, 3, 16, 20, null].map(heatOf), [0, 0, 1, 2, 6, 6, null]);
});

test("values are read at the nearest point within reach", () => {
  const { series } = readLines(/** @type {any} */ ({ figure: { data: [{ name: "a", x: [0, 10, 20], y: [1, null, 3] }] }, meta: {} }));
  assert.equal(valueAt(series[0], 1, 2), 1);
  assert.equal(valueAt(series[0], 10, 2), null, "not measured is not 0");
  assert.equal(valueAt(series[0], 19, 2), 3);
  assert.equal(valueAt(series[0], 15, 2), null);
});

test("a line is not drawn across steps that are missing", () => {
  const { x, y } = broken({ name: "", x: [0, 1, 5, 6], y: [1, 1, 2, 2] }, 1);
  assert.deepEqual([x, y], [[0, 1, 5, 5, 6], [1, 1, NaN, 2, 2]]);
});

test("the log2 axis frames its data in powers of two", () => {
  assert.deepEqual(octaves([1, 65536]), { low: -1, high: 17 });
  assert.equal(octaves([NaN, 0]), null);
  assert.deepEqual(powerTicks({ low: -1, high: 17 }, 5), [0, 4, 8, 12, 16]);
});

test("limits far from the data do not flatten it", () => {
  assert.deepEqual(nearLimits([65504, 6e-5], [1]), [65504, 6e-5]);
  assert.deepEqual(nearLimits([3.4e38, 1.2e-38], [1]), []);
});

test("a cadence of amin is said", () => {
  const line = (/** @type {number[]} */ x) => ({ name: "", x, y: x.map(() => 1) });
  const all = line([0, 1, 2, 3, 4, 5, 6, 7, 8]);
  assert.equal(cadenceNote(all, line([0, 4, 8]), 1), "amin is measured every 4 steps, not measured in between.");
  assert.equal(cadenceNote(all, all, 1), null);
  assert.match(cadenceNote(all, line([]), 1) ?? "", /not measured/);
});

test("magnitudes lie between the dtype's limits", () => {
  const limits = { smallest_normal: 2 ** -14, max_finite: 2 ** 16 };
  assert.deepEqual(magnitudeSpan({ amin: 2 ** -14, amax: 2 ** 16, ...limits }), { from: 0, to: 1 });
  assert.deepEqual(magnitudeSpan({ amin: null, amax: 2, ...limits }), { from: null, to: 0.5 });
  assert.equal(magnitudeSpan({ amin: null, amax: null, ...limits }), null);
});

test("a small constant is drawn as what it is, not as 0", () => {
  const { range, ticktext } = valueAxis([1e-4, 1e-4], { unit: "" });
  assert.ok(range[0] > 0 && range[0] < 1e-4 && range[1] > 1e-4 && range[1] < 1e-3);
  assert.ok(ticktext.includes("1.00e-4"), ticktext.join());
  assert.deepEqual(valueAxis([0, 0], { unit: "" }).range, [-1, 1]);
  assert.deepEqual(valueAxis([], { unit: "" }).range, [0, 1]);
});

test("an axis has a few round values, from zero where it is of durations", () => {
  assert.deepEqual(valueAxis([150, 200], { unit: " ms", fromZero: true }).ticktext, ["0 ms", "100 ms", "200 ms"]);
  assert.deepEqual(valueAxis([0.6, 2.4], { unit: "" }).tickvals, [1, 2]);
  assert.deepEqual(valueAxis([3, 4], { unit: " %", ends: [-4, 104] }).tickvals, [0, 50, 100]);
});

test("a smoothed line begins where the values do, and keeps its holes", () => {
  const { y } = smoothed({ name: "", x: [0, 1, 2, 3], y: [2, NaN, 2, 4] });
  assert.equal(y[0], 2);
  assert.ok(Number.isNaN(y[1]));
  assert.ok(Math.abs(y[2] - 2) < 1e-9 && y[3] > 2 && y[3] < 4);
});
