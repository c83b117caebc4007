// Runs compared: the address, lines over their axes, where runs part as text, and colours that are told apart.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { DASHES } from "../../../web/pages/compare/compare_charts.js";
import { formatCompare, linesOf, parseCompare, partingText, refusal, sharedSeries, smoothed, timeUnit, valueNear } from "../../../web/pages/compare/compare_model.js";
import { MOST_COMPARED } from "../../../web/api/run_query.js";

const typed = (/** @type {number[]} */ values) => ({ dtype: "f8", bdata: Buffer.from(new Float64Array(values).buffer).toString("base64") });
const same = (/** @type {number[]} */ values) => ({ mean: typed(values), low: typed(values), high: typed(values) });
const run = (/** @type {object} */ more = {}) => ({ id: 1, first_step: 10, steps: typed([10, 11, 12]), seconds: typed([0, 5, 10]), tokens: null, series: { loss: same([3, NaN, 1]) }, headroom: typed([9, 8, 7]), ...more });

test("the address is read and written alike, and what makes no sense is left out", () => {
  for (const path of ["/compare?runs=3,1", "/compare?runs=1,2&x=tokens&smooth=0.9&log=1&tolerance=1e-6"]) assert.equal(formatCompare(parseCompare(path.slice(8))), path);
  assert.equal(formatCompare(parseCompare("?runs=2,2,a,-1,3&x=valueOf&smooth=7&log=yes&tolerance=2")), "/compare?runs=2,3");
});

test("one run, none and nine are not compared", () => {
  assert.match(String(refusal([])), /No run is ticked/);
  assert.match(String(refusal([1])), /One run alone/);
  assert.match(String(refusal([1, 2, 3, 4, 5, 6, 7, 8, 9])), /9 runs are too many: 8 at most/);
  assert.equal(refusal([1, 2]), null);
  const { runs, unread } = parseCompare("?runs=2,x,3,<b>");
  assert.equal(refusal(runs, unread), 'Runs are named by their numbers, as in runs=3,7: "x", "<b>" are none.');
  assert.equal(refusal([], parseCompare("?runs=").unread), "No run is ticked.");
});

test("the usual series come first, and those of one run alone are named apart", () => {
  const { shared, alone } = sharedSeries([{ series: ["a", "grad_norm", "loss", "wall_time_s", "only"] }, { series: ["a", "loss", "grad_norm", "step_time_s", "wall_time_s"] }]);
  assert.deepEqual([shared, alone], [["loss", "grad_norm", "a"], ["step_time_s", "only"]]);
});

test("lines lie over steps, relative steps or time, and a run without tokens is left out there", () => {
  const runs = [run(), run({ first_step: 0, tokens: typed([0, 100, 200]) })];
  assert.deepEqual(linesOf(runs, "loss", "", 0)[0], { run: 0, x: [10, 12], y: [3, 1] });
  assert.deepEqual(linesOf(runs, "loss", "relative", 0)[0].x, [0, 2]);
  assert.deepEqual(linesOf(runs, null, "time", 0)[1], { run: 1, x: [0, 5, 10], y: [9, 8, 7] });
  assert.deepEqual(linesOf(runs, "loss", "tokens", 0), [{ run: 1, x: [0, 200], y: [3, 1] }]);
  assert.deepEqual(linesOf(runs, "none", "", 0), []);
});

test("without smoothing a spike within a merged column is drawn", () => {
  const merged = run({ series: { loss: { mean: typed([2, 2, 2]), low: typed([2, 1, 2]), high: typed([2, 90, 2]) } } });
  assert.deepEqual(linesOf([merged], "loss", "", 0)[0].y, [2, 1, 90, 2]);
  assert.deepEqual(linesOf([merged], "loss", "", 0.9)[0].y.map((value) => Number(value.toFixed(9))), [2, 2, 2]);
});

test("smoothing begins at the first value and passes over what is not finite", () => {
  assert.deepEqual(smoothed([0, 1, 2], [4, NaN, 4], 0.9).y.map((value) => Number(value.toFixed(9))), [4, 4]);
  const { y } = smoothed([0, 1], [0, 1], 0.5);
  assert.deepEqual(y.map((value) => Number(value.toFixed(6))), [0, 0.666667]);
});

test("a value is read at the nearest point, and not beyond the ends", () => {
  const line = { run: 0, x: [0, 10, 20], y: [1, 2, 3] };
  assert.deepEqual([valueNear(line, 14), valueNear(line, 16), valueNear(line, 21), valueNear({ run: 0, x: [], y: [] }, 0)], [2, 3, null, null]);
  assert.deepEqual([timeUnit(50).unit, timeUnit(500).unit, timeUnit(20000).unit], ["s", "min", "h"]);
});

test("where runs part is said exactly and with the tolerance", () => {
  const base = { run: 2, start: 0, stop: 100, is_whole: true, steps_per_column: 1, compared: 100, differs: null, beyond: null };
  assert.equal(partingText(base, "0.1 %"), "the loss is equal bit for bit at all 100 steps that both logged.");
  const differs = { step: 40, values: [2.6, 2.6000000000000005] };
  assert.equal(partingText({ ...base, differs }, "0.1 %"), "the loss first differs at step 40: 2.6 and 2.6000000000000005. It is never apart by more than 0.1 %.");
  assert.match(partingText({ ...base, differs, beyond: { step: 70, values: [2, null] } }, "1 %"), /By more than 1 % from step 70 on: 2 and NaN or Inf\.$/);
  assert.equal(partingText({ ...base, stop: 0 }, "1 %"), "no step in common.");
  assert.equal(partingText({ ...base, compared: 0 }, "1 %"), "no step at which both logged a loss.");
  assert.match(partingText({ ...base, stop: 262144, is_whole: false }, "1 %"), /The steps from 262,144 on were not compared\.$/);
});

test("eight lines differ by dash, and each colour stands out from the panel in both themes", () => {
  assert.equal(new Set(DASHES).size, MOST_COMPARED);
  const css = readFileSync(new URL("../../../web/styles/runs.css", import.meta.url), "utf8");
  const pairs = [...css.matchAll(/\.run-line\[data-line="\d"\] \{ color: light-dark\((#\w{6}), (#\w{6})\)/g)];
  assert.equal(pairs.length, MOST_COMPARED);
  const light = (/** @type {string} */ colour) => {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (/** @type {string} */ a, /** @type {string} */ b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  for (const [, onLight, onDark] of pairs) assert.ok(contrast(onLight, "#ffffff") >= 4.5 && contrast(onDark, "#1b1f23") >= 4.5, `${onLight} ${onDark}`);
});
