
import assert from "node:assert/strict";
import { test } from "node:test";

import { EXPONENTS, exponentDrawing, measuredAt, measuredText, percent, power, readExponents } from "../../../web/charts/lanes/exponents.js";
import { frameOf } from "../../../web/charts/frame.js";

const spec = (/** @type {string} */ dtype, /** @type {any} */ array, /** @type {string} */ shape = "") =>
  ({ dtype, bdata: Buffer.from(array.buffer).toString("base64"), ...(shape && { shape }) });
const floats = (/** @type {number[]} */ ...values) => spec("f8", Float64Array.of(...values));

const LIMITS = { dtype: "float16", max_finite: 65504, smallest_normal: 2 ** -14, smallest_subnormal: 2 ** -24 };
const MEASURED = { steps: floats(0, 100), low: floats(-20, NaN), median: floats(-16, NaN), high: floats(-10, NaN), zero_fraction: floats(0.25, 1), subnormal_fraction: floats(0.00001, NaN) };
const SHARES = { name: "share", x: floats(-0.5, 99.5, 199.5), y0: -19.5, dy: 1, z: spec("f4", new Float32Array(20), "10, 2") };
/** @param {any} meta @param {any[]} data */
const model = (meta = { measured: MEASURED, limits: LIMITS }, data = [SHARES]) => readExponents(/** @type {any} */ ({ figure: { data }, meta }));
const PALETTE = /** @type {any} */ ({ panel: "white", line: "grey", accent: "blue", ink: "black", bad: "red", warning: "orange", muted: "grey", scales: { share: [] } });

test("a served figure reads as what each full set held", () => {
  const { measured, span } = model();
  assert.deepEqual(measured.map(({ step, median, zero }) => [step, median, zero]), [[0, -16, 0.25], [100, NaN, 1]]);
  assert.deepEqual(span, { low: -20, high: -10 });
});

test("a step shows the last full set before it, and none before the first", () => {
  assert.equal(measuredAt(model(), 99)?.step, 0);
  assert.equal(measuredAt(model(), 100)?.step, 100);
  assert.equal(measuredAt(model(), -1), null);
  assert.match(EXPONENTS.readout(model(), 99, null), /^median 2⁻¹⁶, 98 % in 2⁻²⁰ to 2⁻⁹, under 0.01 % subnormal, 25 % zero, at step 0$/);
});

test("all zero, not measured and few are distinguished", () => {
  assert.equal(measuredText(model().measured[1]), "all zero, not measured subnormal, 100 % zero");
  assert.deepEqual([0, 1e-5, 0.01234, NaN].map(percent), ["0 %", "under 0.01 %", "1.23 %", "not measured"]);
  assert.deepEqual([-5, NaN].map(power), ["2⁻⁵", "none"]);
});

test("without a histogram there is nothing to draw", () => {
  assert.ok(EXPONENTS.isEmpty(model({ measured: {}, limits: null }, [])));
  assert.ok(!EXPONENTS.isEmpty(model()));
});

test("the dtype's limits frame the cells, and far ones do not flatten them", () => {
  const frame = frameOf(800, 260, { start: 0, stop: 200 }, 52);
  const { traces, layout } = /** @type {any} */ (exponentDrawing(model(), frame, PALETTE));
  assert.equal(traces.length, 1);
  assert.deepEqual(layout.shapes.map((/** @type {any} */ shape) => Math.round(shape.y0)), [16, -14, -24]);
  assert.ok(layout.yaxis.range[0] < -24 && layout.yaxis.range[1] > 16);
  const far = { ...LIMITS, dtype: "float32", max_finite: 3.4e38, smallest_normal: 2 ** -126, smallest_subnormal: 2 ** -149 };
  assert.deepEqual(/** @type {any} */ (exponentDrawing(model({ measured: MEASURED, limits: far }), frame, PALETTE)).layout.shapes, []);
});
