
import assert from "node:assert/strict";
import { test } from "node:test";

import { STEPS, clockAxis } from "../../../web/charts/frame.js";
import { gridRows, gridSummary } from "../../../web/charts/cells/cell_heatmap.js";
import { readExponents } from "../../../web/charts/lanes/exponents.js";
import { readHeatmap } from "../../../web/charts/heatmap.js";
import { readLines } from "../../../web/charts/lines.js";
import { csvLines } from "../../../web/charts/saving/files.js";
import { MOST_ROWS, rowsOf, summaryOf } from "../../../web/charts/saving/rows.js";
import { callRows, callSummary, timelineOf } from "../../../web/pages/collectives/call_timeline.js";

const row = (/** @type {string} */ label) => ({ label, count: 1, tensor: 0, tensors: null, rank: null });
const heat = (/** @type {number[]} */ z, /** @type {number[]} */ states, /** @type {string[]} */ names, dx = 1) =>
  readHeatmap(/** @type {any} */ ({ figure: { data: [{ x0: (dx - 1) / 2, dx, z }] }, meta: { rows: names.map(row), states, nonfinite_columns: [] } }));
/** The rows of a figure, where a column holds text or numbers and never both. */
function rows(/** @type {any} */ { columns, rows: made }) {
  const all = [...made];
  for (const [i, name] of columns.entries()) {
    const types = new Set(all.map((row) => row[i]).filter((value) => value !== null).map((value) => typeof value));
    assert.ok(types.size <= 1 && [...types].every((type) => type === "string" || type === "number"), `${name}: ${[...types]}`);
  }
  return all;
}

test("CSV: quotes, and no name that a spreadsheet would calculate", () => {
  const lines = csvLines({ columns: ["a", "b"], rows: [["=1+1", 'x,"y"'], ["-1", -1], [null, NaN], ["two\nlines", true], ["'", "@a"]] });
  assert.deepEqual(lines, ["a,b\r\n", `'=1+1,"x,""y"""\r\n`, "'-1,-1\r\n", ",\r\n", '"two\nlines",true\r\n', "'','@a\r\n"]);
});

const HEAT = heat([5, 4, NaN, 0.5, NaN, NaN], [0, 0, 2, 1, 5, 6], ["calm", "hot", "hidden"], 64);

test("a heatmap: every cell with its steps and its state in words", () => {
  const data = rowsOf(HEAT, STEPS);
  assert.deepEqual(data?.columns, ["row", "first_step", "last_step", "state", "headroom_bits"]);
  assert.deepEqual(rows(data), [
    ["calm", 0, 63, "value", 5], ["calm", 64, 127, "value", 4],
    ["hot", 0, 63, "Inf", null], ["hot", 64, 127, "saturated", 0.5],
    ["hidden", 0, 63, "not observed", null], ["hidden", 64, 127, "stale", null],
  ]);
});

test("a heatmap as a table: the worst of each row, where it is, and how it ends", () => {
  const table = summaryOf(HEAT, "layers", STEPS);
  assert.deepEqual(table?.rows, [
    ["calm", "4.0 bits", "steps 64-127", "4.0 bits"],
    ["hot", "Inf", "steps 0-63", "saturated, 0.50 bits"],
    ["hidden", "not observed", "steps 0-63", "stale"],
  ]);
  assert.deepEqual(table?.columns, ["Row", "Least headroom", "Where first", "At the end"]);
});

test("of very many rows a table has the worst, and says so", () => {
  const names = Array.from({ length: 300 }, (_, i) => `layer ${i}`);
  const table = summaryOf(heat(names.map((_, i) => 15 - i / 30), names.map(() => 0), names), "layers", STEPS);
  assert.equal(table?.rows.length, MOST_ROWS);
  assert.equal(table?.rows[0][0], "layer 299");
  assert.match(table?.note ?? "", /^The 200 worst of 300 rows/);
});

test("another statistic than headroom keeps its own name and unit", () => {
  const model = { ...heat([3, -1], [0, 0], ["a", "b"]), statistic: { name: "amax", title: "Largest magnitude", worst_title: "largest magnitude", scale: "log2" } };
  assert.deepEqual(rows(rowsOf(model, STEPS)), [["a", 0, 0, "value", 8], ["b", 0, 0, "value", 0.5]]);
  assert.equal(rowsOf(model, STEPS)?.columns.at(-1), "amax");
  assert.equal(summaryOf(model, "layers", STEPS)?.columns[1], "Largest magnitude");
  assert.equal(summaryOf(model, "layers", STEPS)?.rows[0][1], "8.00e0");
});

test("a heatmap of tensors names them, one without states says what is not known", () => {
  const byTensor = { ...heat([5, 4], [0, 0], ["rank 0"]), tensors: [row("first"), row("second")] };
  assert.deepEqual(rows(rowsOf(byTensor, STEPS))[1], ["rank 0", "second", "value", 4]);
  assert.equal(summaryOf(byTensor, "ranks", STEPS)?.rows[0][2], "second");
  const waits = { name: "wait_s", rows: [row("rank 0")], columns: 2, x0: 0, dx: 1, z: [0.25, NaN] };
  assert.deepEqual(rows(rowsOf(waits, STEPS)), [["rank 0", 0, 0, "value", 0.25], ["rank 0", 1, 1, "not known", null]]);
  const two = { ...waits, rows: [row("rank 0"), row("rank 1")], z: [0.1, 0.25, NaN, NaN] };
  assert.deepEqual(summaryOf(two, "waits", STEPS), { columns: ["Row", "Greatest wait", "Where first"], rows: [["rank 0", "250 ms", "step 1"], ["rank 1", "not known", "nowhere"]], note: "The CSV file has every cell." });
});

const lines = (/** @type {any[]} */ data, more = {}) => readLines(/** @type {any} */ ({ figure: { data }, meta: { steps_per_column: 1, ...more } }));

test("lines: a point a row, and non-finite steps as such", () => {
  const loss = lines([{ name: "loss", x: [0, 1], y: [2.5, 2.25] }], { nonfinite_steps: [2] });
  assert.deepEqual(rows(rowsOf(loss, STEPS)), [[0, 0, "loss", 2.5, "", "value"], [1, 1, "loss", 2.25, "", "value"], [2, 2, "loss", null, "", "not finite"]]);
  assert.deepEqual(summaryOf(loss, "loss", STEPS)?.rows, [["step 0", "2.5"], ["step 1", "2.25"], ["step 2", "not finite"]]);
});

test("lines: a column of merged steps has both its ends, skipped steps are named", () => {
  const scale = lines([{ name: "loss scale", x: [31.5, 31.5, 95.5], y: [32768, 65536, 65536] }, { name: "skipped step", x: [31.5], y: [32768] }], { steps_per_column: 64 });
  assert.deepEqual(rows(rowsOf(scale, STEPS))[0], [0, 63, "loss scale", 32768, "", "value"]);
  assert.deepEqual(summaryOf(scale, "loss_scale", STEPS)?.rows, [["steps 0-63", "2¹⁵ to 2¹⁶", "skipped"], ["steps 64-127", "2¹⁶", "no"]]);
  const time = lines([{ name: "slowest rank", x: [0], y: [12] }, { name: "fastest rank", x: [], y: [] }], { unit: "ms" });
  assert.deepEqual(summaryOf(time, "step_time", STEPS), { columns: ["Step", "slowest rank, ms", "fastest rank, ms"], rows: [["step 0", "12", "not measured"]], note: "" });
});

test("where skipped steps are not recorded it is not known that none was skipped", () => {
  const scale = lines([{ name: "loss scale", x: [0], y: [2] }, { name: "skipped step", x: [], y: [] }]);
  assert.deepEqual(summaryOf(scale, "loss_scale", STEPS, ["loss", "loss_scale"])?.rows, [["step 0", "2¹", "not known"]]);
  assert.deepEqual(summaryOf(scale, "loss_scale", STEPS, ["loss_scale", "skipped_step"])?.rows, [["step 0", "2¹", "no"]]);
});

test("of a long line a table has the newest rows", () => {
  const x = Array.from({ length: 1000 }, (_, i) => i);
  const table = summaryOf(lines([{ name: "loss", x, y: x }]), "loss", STEPS);
  assert.deepEqual([table?.rows.length, table?.rows[0][0], table?.note], [MOST_ROWS, "step 800", "The last 200 of 1,000 rows; the CSV file has all."]);
});

test("on the time axis rows have the clock's time", () => {
  const power = lines([{ name: "power", x: [0, 1.5], y: [300, null] }]);
  const data = rowsOf(power, clockAxis(1_700_000_000e9), "W");
  assert.deepEqual(data?.columns.slice(1), ["series", "value", "unit", "state"]);
  assert.equal(data?.columns[0], "time_utc");
  assert.deepEqual(rows(data), [["2023-11-14T22:13:20.000Z", "power", 300, "W", "value"], ["2023-11-14T22:13:21.500Z", "power", NaN, "W", "not measured"]]);
});

test("bands and events: from when to when, and the message", () => {
  const model = { rows: [{ name: "HW slowdown", bands: [{ from: 3.5, to: 5.5 }], marks: [], isCalm: false }, { name: "Xid", bands: [], marks: [{ at: 4, text: "Xid 79" }], isCalm: false }], dx: 1, meta: { steps_per_column: 1 }, isKnown: true };
  assert.deepEqual(rows(rowsOf(model, STEPS)), [["HW slowdown", 4, 6, null], ["Xid", 4, 4, "Xid 79"]]);
  assert.deepEqual(summaryOf(model, "gpu-throttle", STEPS)?.rows, [["HW slowdown", "step 4 to step 6", ""], ["Xid", "step 4", "Xid 79"]]);
});

test("exponents: the share of each power of two", () => {
  const model = readExponents(/** @type {any} */ ({
    figure: { data: [{ x: [-0.5, 9.5, 19.5], y0: -2.5, z: { dtype: "f4", bdata: Buffer.from(Float32Array.of(-1, NaN, 0, -2).buffer).toString("base64"), shape: "2, 2" } }] },
    meta: { steps_per_column: 1, measured: { steps: [0, 10], low: [-3, -2], median: [-2, -2], high: [-2, -2], zero_fraction: [0, 0.5], subnormal_fraction: [0, 0] } },
  }));
  assert.deepEqual(rows(rowsOf(model, STEPS)), [[0, 9, -3, 0.1], [0, 9, -2, 1], [10, 19, -2, 0.01]]);
  assert.deepEqual(summaryOf(model, "exponents", STEPS)?.rows[1], ["step 10", "2⁻¹", "2⁻²", "2⁻¹", "0 %", "50 %"]);
});

test("an unknown model has neither rows nor a table", () => {
  assert.equal(rowsOf({ mystery: 1 }, STEPS), null);
  assert.equal(summaryOf(null, "x", STEPS), null);
});

const LABELS = { unknown: "not tested", bad: "failed" };
const grid = (/** @type {number} */ size) => ({
  rows: Array.from({ length: size }, (_, i) => `rank ${i}`),
  columns: Array.from({ length: size }, (_, i) => (1000 + i).toLocaleString("en-US")),
  cell: (/** @type {number} */ a, /** @type {number} */ b) => (a === b ? /** @type {const} */ ("blank") : b === 0 ? null : b === 1 ? /** @type {const} */ ("bad") : a + b),
});
const readout = (/** @type {any} */ _, /** @type {import("../../../web/charts/cells/cell_grid.js").Spot} */ { row, column }) => `${row} to ${column}`;

test("a grid of cells: all of them in a file, and in a table while they are few", () => {
  const data = gridRows(grid(3), readout, LABELS);
  assert.deepEqual(rows(data)[0], ["rank 0", "1001", null, "failed", "0 to 1"]);
  assert.deepEqual(rows(data)[1], ["rank 0", "1002", 2, "value", "0 to 2"]);
  assert.equal(rows(data).length, 6);
  assert.deepEqual(gridSummary(grid(3), readout, LABELS).rows[2], ["rank 1", "1,000", "1 to 0", "not tested"]);
  const large = gridSummary(grid(30), readout, LABELS);
  assert.equal(large.rows.length, 30);
  assert.deepEqual(large.rows[5], ["rank 5", "1,001", "5 to 1", "1 cell"]);
});

test("collectives of a step, one whose duration nobody knows among them", () => {
  const call = { group: "default_pg", op: "all_reduce", dtype: "float16", bytes: 1024, sequence: 7, begin_s: 0, duration_s: 0.002, wait_s: 0.001, bucket: null, parameters: ["a.weight"] };
  const timeline = timelineOf(/** @type {any} */ ({ step: 3, ranks: [{ rank: 0, collectives: [call, { ...call, sequence: 8, duration_s: null, wait_s: null }] }] }));
  assert.deepEqual(rows(callRows(timeline))[0], [0, "default_pg", "all_reduce", 7, 1024, "float16", 0, 0.002, 0.001, "a.weight", "value"]);
  assert.equal(rows(callRows(timeline))[1].at(-1), "duration not known");
  assert.deepEqual(callSummary(timeline).rows[1].slice(0, 6), ["rank 0", "all_reduce 8 of default_pg", "1 KiB", "0 ms", "not known", "n/a"]);
});
