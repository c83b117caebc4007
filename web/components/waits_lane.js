// Rank by step: how long each rank waited for the others in its collectives, and for whom, on the lanes' axis.

import * as api from "../api.js";
import { share } from "../colour_scale.js";
import { heatmapDrawing } from "../figure_drawing.js";
import { heatCells } from "../heat_cells.js";
import { columnAt } from "../heatmap_model.js";
import { SCALE_BITS, STATE } from "../headroom.js";
import { time } from "../quantities.js";
import { seldom } from "../seldom.js";
import { decode } from "../typed_array.js";
import { el } from "../dom.js";
import { viewKey } from "./lane_view.js";

/** @typedef {import("../types.js").HeatmapRow} HeatmapRow */
/**
 * @typedef {object} WaitsModel
 * @property {{name: string, z: any}} trace
 * @property {HeatmapRow[]} rows
 * @property {number} columns
 * @property {ArrayLike<number>} z seconds that each rank waited; NaN: not known
 * @property {ArrayLike<number>} cost what the others waited for it, added up
 * @property {number} x0
 * @property {number} dx
 * @property {import("../types.js").FigureMeta} meta
 * @property {boolean} isKnown whether anything is
 */

const ROW = 15;

/** Seconds. Fixed, so that two runs compare by eye. @type {import("../colour_scale.js").Scale} */
const SCALE = { low: 1e-4, high: 1, ticks: [1e-4, 1e-3, 1e-2, 0.1, 1], text: (s) => (s >= 1 ? "1+ s" : `${s * 1e3} ms`) };

/** Calm is cool and pale, as headroom is: a wait's place on the ramp, as if it were bits. @param {number} seconds */
export function asBits(seconds) {
  const place = (1 - share(seconds, SCALE)) * (SCALE_BITS.length - 1);
  const below = Math.min(SCALE_BITS.length - 2, Math.floor(place));
  return SCALE_BITS[below] + (SCALE_BITS[below + 1] - SCALE_BITS[below]) * (place - below);
}

/** @param {import("../types.js").FigureAnswer} answer @returns {WaitsModel} */
export function readWaits({ figure, meta }) {
  const { x0 = 0, dx = 1, z: sent } = figure.data[0];
  const rows = meta.rows ?? [];
  const z = decode(sent);
  const { cost_to_others_s: cost } = /** @type {{cost_to_others_s?: unknown}} */ (/** @type {unknown} */ (meta));
  const isKnown = Array.from(z).some(Number.isFinite);
  return { trace: { name: "wait_s", z: sent }, rows, columns: rows.length ? z.length / rows.length : 0, z, cost: decode(cost), x0, dx, meta, isKnown };
}

/** @param {WaitsModel} model @param {import("../figure_frame.js").Frame} frame @param {import("../theme.js").Palette} palette */
const draw = (model, frame, palette) => heatmapDrawing({ ...model, markSteps: [] }, frame, palette);

/** @param {WaitsModel} model @param {import("../theme.js").Palette} palette */
function cells(model, palette) {
  const z = Array.from(model.z, (seconds) => (Number.isFinite(seconds) ? asBits(seconds) : NaN));
  const states = z.map((bits) => (Number.isFinite(bits) ? STATE.value : STATE.notObserved));
  return heatCells({ ...model, z, states }, palette);
}

/** Of a column the largest of some values and its row; null where none is known. @param {WaitsModel} model @param {ArrayLike<number>} values @param {number} column */
function largest({ rows, columns }, values, column) {
  const known = rows.map((_, row) => ({ row, value: values[row * columns + column] })).filter(({ value }) => Number.isFinite(value));
  return known.length ? known.reduce((a, b) => (b.value > a.value ? b : a)) : null;
}

/** Who waited how long, and whose fault it was. @param {WaitsModel} model @param {number} step @param {number | null} row */
function readout(model, step, row) {
  const column = columnAt(/** @type {any} */ (model), step);
  if (column === null) return "";
  const own = (/** @type {number} */ at) => ({ row: at, value: model.z[at * model.columns + column] });
  const at = row === null ? largest(model, model.z, column) : own(row);
  if (!at || !Number.isFinite(at.value)) return row === null ? "not known" : `${model.rows[row].label}: not known`;
  const late = largest(model, model.cost, column);
  const whose = late && late.value > 0 ? `; for ${model.rows[late.row].label} most, ${time(late.value)} of all the others` : "";
  return `${model.rows[at.row].label} waited ${time(at.value)}${whose}`;
}

function legend() {
  const ticks = SCALE.ticks.map((value) => {
    const tick = el("span", {}, SCALE.text(value));
    tick.style.left = `${share(value, SCALE) * 100}%`;
    return tick;
  });
  const bar = el("div", { class: "legend-scale is-cost" }, el("div", { class: "legend-bar is-cost" }), el("div", { class: "legend-ticks" }, ...ticks));
  return el("div", { class: "legend lane-legend" }, bar, el("span", { class: "legend-item" }, el("span", { class: "swatch", "data-look": "unknown", "aria-hidden": "true" }), "not known"));
}

/** To read many ranks' collectives takes the server a while. @param {string} run */
export const createWaitsSource = (run) =>
  seldom((/** @type {import("./lane.js").View} */ { range }, /** @type {number} */ columns, /** @type {AbortSignal} */ signal) => api.slowFigure(run, "waits", { ...range, columns }, signal), viewKey);

/** @type {import("./lane_specs.js").LaneSpec} */
export const WAITS = {
  name: "waits",
  title: "Waits in collectives by rank",
  empty: "No collective was timed in these steps.",
  plotHeight: (rows) => Math.max(30, Math.min(200, rows * ROW)),
  read: readWaits,
  isEmpty: (/** @type {WaitsModel} */ { isKnown }) => !isKnown,
  draw,
  cells,
  readout,
  legend,
  bar: { title: "waited for the others", tickvals: SCALE.ticks.map(asBits), ticktext: SCALE.ticks.map(SCALE.text) },
};
