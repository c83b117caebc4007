// Heatmaps: decodes what the server sends, finds the worst cells, and where the cells lie on a plot. Pure.

import { steps } from "../format/numbers.js";
import { decode } from "../format/typed_array.js";
import { axisRange } from "./frame.js";
import { HEADROOM, STATE, STATE_LABELS, badnessOf as howBad, isNonfinite, isScale, valueText } from "./statistics.js";

/** @typedef {import("../types.js").FigureAnswer} FigureAnswer */
/** @typedef {import("./statistics.js").Statistic} Statistic */
/** @typedef {import("../types.js").HeatmapRow & {module?: string, listed?: number[], step?: number}} HeatmapRow `module`: one that is closed; `listed`: tensors that are no range in call order; `step`: the exact one of its worst */
/** @typedef {{row: number, column: number, state: number, bits: number, statistic?: Statistic | null}} Cell `bits`: the value on the statistic's scale */
/**
 * @typedef {object} HeatmapModel
 * @property {string} name of what the cells hold
 * @property {HeatmapRow[]} rows
 * @property {number} columns
 * @property {ArrayLike<number>} z
 * @property {ArrayLike<number>} states
 * @property {number} x0
 * @property {number} dx
 * @property {Statistic | null} [statistic] what the cells hold; null is headroom
 * @property {import("../types.js").Module[]} [modules] of the tensors shown, where they were asked for
 * @property {number} [units] of a figure whose columns are tensors: how many, a closed module being one
 * @property {number[]} markSteps centres of the columns that hold a NaN or Inf
 * @property {import("../types.js").FigureMeta} meta
 */

/** @param {FigureAnswer} answer @returns {HeatmapModel} */
export function readHeatmap({ figure, meta }) {
  const { name = "", x0 = 0, dx = 1, z } = figure.data[0] ?? {};
  const rows = meta.rows ?? [];
  const states = decode(meta.states);
  const { statistic = null, modules, units } = /** @type {any} */ (meta);
  return {
    name, rows, states, x0, dx, modules, units, meta,
    statistic: statistic?.name === HEADROOM ? null : statistic,
    z: decode(z),
    columns: rows.length ? states.length / rows.length : 0,
    markSteps: (meta.nonfinite_columns ?? []).map((column) => x0 + column * dx),
  };
}

/** @param {HeatmapModel} model @param {number} row @param {number} column @returns {Cell} */
export function cellOf(model, row, column) {
  const at = row * model.columns + column;
  return { row, column, state: model.states[at], bits: model.z[at], statistic: model.statistic };
}

/** @param {HeatmapModel} model @param {number} step @returns {number | null} */
export function columnAt(model, step) {
  const column = Math.round((step - model.x0) / model.dx);
  return column >= 0 && column < model.columns ? column : null;
}

/** The steps a column stands for: the last one ends with what is shown. @param {HeatmapModel} model @param {number} column */
export function columnSteps(model, column) {
  const edge = (/** @type {number} */ at) => Math.ceil(model.x0 + (at - 0.5) * model.dx - 1e-6);
  const start = Math.max(0, edge(column));
  return { start, stop: Math.max(start + 1, Math.min(edge(column + 1), model.meta?.stop ?? Infinity)) };
}

/** Where the worst cell of a row is: its step, where the server named it, else the steps of its column; or its layer. @param {HeatmapModel & {tensors?: HeatmapRow[]}} model @param {Cell} cell */
export function placeText(model, { row, column }) {
  if (model.tensors) return rowName(model.tensors[column]);
  const all = columnSteps(model, column);
  const { step } = model.rows[row];
  return steps(step !== undefined && step >= all.start && step < all.stop ? { start: step, stop: step + 1 } : all);
}

/** Greater is worse: NaN and Inf are alike, any value is worse than none, and what was observed than what was not. @param {number} state @param {number} bits @param {Statistic | null | undefined} statistic */
function badness(state, bits, statistic) {
  if (isNonfinite(state)) return Infinity;
  if (state !== STATE.value && state !== STATE.saturated && !isScale(state)) return -1e6 - state;
  if (!Number.isFinite(bits)) return -1e6;
  return howBad(statistic, bits) + (isScale(state) ? 1e3 * state : 0); // a scale that is too small before one that is stale
}

/** @param {Cell} cell */
const badnessOf = ({ state, bits, statistic }) => badness(state, bits, statistic);

/**
 * Where the worst of some cells is, in `z`: of equals the first, so that it is where the trouble began; -1 without any.
 * No object a cell: a heatmap has 200,000.
 * @param {HeatmapModel} model @param {number} first @param {number} count @param {number} stride
 */
function worst({ states, z, statistic }, first, count, stride) {
  let worstAt = -1;
  let most = NaN;
  for (let i = 0, at = first; i < count; i += 1, at += stride) {
    const bad = badness(states[at], z[at], statistic);
    if (worstAt >= 0 && !(bad > most)) continue;
    worstAt = at;
    most = bad;
  }
  return worstAt;
}

/** @param {HeatmapModel} model @param {number} column */
export function worstInColumn(model, column) {
  const at = worst(model, column, model.rows.length, model.columns);
  return at < 0 ? null : cellOf(model, Math.floor(at / model.columns), column);
}

/** @param {HeatmapModel} model @param {number} row */
export function worstInRow(model, row) {
  const at = worst(model, row * model.columns, model.columns, 1);
  return at < 0 ? null : cellOf(model, row, at % model.columns);
}

/** The rows with the worst values, worst first; those with a NaN or Inf in order of step, then call. @param {HeatmapModel} model @param {number} limit */
export function worstRows(model, limit) {
  return model.rows
    .flatMap((_, row) => worstInRow(model, row) ?? [])
    .sort((a, b) => compare(badnessOf(b), badnessOf(a)) || began(a) - began(b) || a.row - b.row)
    .slice(0, limit);
}

/** The row where a NaN or Inf was first, else the one with the worst value; null where all are alike. @param {HeatmapModel} model */
export function worstRow(model) {
  const { states, z, rows, columns, statistic } = model;
  if (rows.length < 2 || !columns) return null;
  const at = worst(model, 0, states.length, 1);
  if (at < 0 || !(isNonfinite(states[at]) || Number.isFinite(z[at]))) return null;
  if (!isNonfinite(states[at])) return badness(states[at], z[at], statistic) > -1e6 ? Math.floor(at / columns) : null;
  const column = Math.min(...model.rows.map((_, row) => worst(model, row * columns, columns, 1)).filter((one) => isNonfinite(states[one])).map((one) => one % columns));
  return worstInColumn(model, column)?.row ?? null;
}

/** Infinity is equal to itself. @param {number} a @param {number} b */
const compare = (a, b) => (a === b ? 0 : a - b);

/** @param {Cell} cell */
const began = (cell) => (isNonfinite(cell.state) ? cell.column : 0);

/** 5.1 bits, saturated 0.06 bits, 6.27e4, NaN, not observed. @param {Cell} cell */
export function cellText({ state, bits, statistic }) {
  if (state === STATE.value) return valueText(statistic, bits);
  const { label } = STATE_LABELS[state] ?? { label: "unknown" };
  const counts = state === STATE.saturated || isScale(state) || (isNonfinite(state) && statistic?.scale === "count");
  return counts ? `${label}, ${valueText(statistic, bits)}` : label;
}

/** In the address, that all modules are open where some would be closed otherwise: no module has this name. */
export const NONE_CLOSED = ".";

/** The closed modules once one is opened: of the reader's choice, or of the server's. @param {readonly string[]} closed @param {Pick<HeatmapModel, "meta"> | null} model @param {string} path @returns {string[]} */
export function closedWithout(closed, model, path) {
  const left = (closed.length ? closed : model?.meta.closed ?? []).filter((one) => one !== path);
  return left.length || closed.length ? left : [NONE_CLOSED];
}

/** @param {HeatmapRow} row */
export function rowName(row) {
  if (row.count > 1) return `${row.label} (worst of ${row.count})`;
  return row.place ? `${row.label} (${row.place})` : row.label;
}

// Where cells are drawn: under the plot of a page, and as Plotly's own in a file.

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./drawing.js").Drawing} Drawing */
/** What is painted of a model: z row by row, where not finite without a colour; `states`, a pattern each. @typedef {Pick<HeatmapModel, "columns" | "x0" | "dx" | "z" | "states"> & {rows: readonly unknown[]} & import("./colours.js").CellColours} HeatCells */

/** Where the cells lie on the plot, in its pixels: wider than it where a part of them is shown. @param {HeatCells} cells @param {Frame} frame */
export function cellsBox({ columns, x0, dx }, { plotWidth, plotHeight, range }) {
  const [start, stop] = axisRange(range);
  const scale = plotWidth / (stop - start);
  return { left: (x0 - dx / 2 - start) * scale, width: Math.max(1, columns * dx * scale), height: plotHeight };
}

/** With its cells, as a file has them: as Plotly's heatmap, which has a scale, and the states as an image. @param {Drawing} drawing @param {HeatCells} cells @param {Frame} frame @param {string} states data URL of a picture of the plot @returns {Drawing} */
export function withCells({ traces, layout }, cells, frame, states) {
  const { rows, columns, x0, dx, z, low, high, colours } = cells;
  const lines = rows.map((_, row) => Array.from({ length: columns }, (_each, column) => z[row * columns + column]));
  const heat = { type: "heatmap", z: lines, x0, dx, y0: 0, dy: 1, zmin: low, zmax: high, zsmooth: false, colorscale: colours, showscale: false, hoverinfo: "skip" };
  return { traces: [heat, ...traces], layout: { ...layout, images: [plotImage(states, rows.length, frame)] } };
}

/** @param {string} source @param {number} rows @param {Frame} frame */
function plotImage(source, rows, { range }) {
  const [start, stop] = axisRange(range);
  const place = { xref: "x", yref: "y", x: start, y: -0.5, xanchor: "left", yanchor: "top" };
  return { source, ...place, sizex: stop - start, sizey: rows, sizing: "stretch", layer: "above" };
}
