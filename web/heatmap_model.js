// A served heatmap, decoded: cells, worst of a row or column, words for a cell. Pure.

import { STATE, STATE_WORDS, isNonfinite } from "./headroom.js";
import { HEADROOM, valueText } from "./statistics.js";
import { decode } from "./typed_array.js";

/** @typedef {import("./types.js").FigureAnswer} FigureAnswer */
/** @typedef {import("./statistics.js").Statistic} Statistic */
/** @typedef {import("./types.js").HeatmapRow & {module?: string, listed?: number[]}} HeatmapRow `module`: one that is closed; `listed`: tensors that are no range in call order */
/** @typedef {{row: number, column: number, state: number, bits: number, statistic?: Statistic | null}} Cell `bits`: the value on the statistic's scale */
/**
 * @typedef {object} HeatmapModel
 * @property {any} trace as served
 * @property {HeatmapRow[]} rows
 * @property {number} columns
 * @property {ArrayLike<number>} z
 * @property {ArrayLike<number>} states
 * @property {number} x0
 * @property {number} dx
 * @property {Statistic | null} [statistic] what the cells hold; null is headroom
 * @property {import("./module_tree_model.js").Module[]} [modules] of the tensors shown, where they were asked for
 * @property {number} [units] of a figure whose columns are tensors: how many, a closed module being one
 * @property {number[]} markSteps centres of the columns that hold a NaN or Inf
 */

/** @param {FigureAnswer} answer @returns {HeatmapModel} */
export function readHeatmap({ figure, meta }) {
  const trace = figure.data[0];
  const rows = meta.rows ?? [];
  const states = decode(meta.states);
  const { x0 = 0, dx = 1 } = trace;
  const { statistic = null, modules, units } = /** @type {any} */ (meta);
  return {
    trace, rows, states, x0, dx, modules, units,
    statistic: statistic?.name === HEADROOM ? null : statistic,
    z: decode(trace.z),
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

/** The steps a column stands for. @param {HeatmapModel} model @param {number} column */
export function columnSteps(model, column) {
  const edge = (/** @type {number} */ at) => Math.ceil(model.x0 + (at - 0.5) * model.dx - 1e-6);
  const start = Math.max(0, edge(column));
  return { start, stop: Math.max(start + 1, edge(column + 1)) };
}

/** Greater is worse: NaN and Inf are alike, any value is worse than none, and what was observed than what was not. @param {number} state @param {number} bits @param {Statistic | null | undefined} statistic */
function badness(state, bits, statistic) {
  if (isNonfinite(state)) return Infinity;
  if (state !== STATE.value && state !== STATE.saturated) return -1e6 - state;
  if (!Number.isFinite(bits)) return -1e6;
  return statistic?.worst === "most" ? bits : -bits;
}

/** @param {Cell} cell */
const badnessOf = ({ state, bits, statistic }) => badness(state, bits, statistic);

/**
 * Where the worst of some cells is, in `z`: of equals the first, so that it is where the trouble began; -1 without any.
 * No object a cell: a heatmap has 200,000.
 * @param {HeatmapModel} model @param {number} first @param {number} count @param {number} stride
 */
function worst({ states, z, statistic }, first, count, stride) {
  let found = -1;
  let most = NaN;
  for (let i = 0, at = first; i < count; i += 1, at += stride) {
    const bad = badness(states[at], z[at], statistic);
    if (found >= 0 && !(bad > most)) continue;
    found = at;
    most = bad;
  }
  return found;
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

/** Infinity is equal to itself. @param {number} a @param {number} b */
const compare = (a, b) => (a === b ? 0 : a - b);

/** @param {Cell} cell */
const began = (cell) => (isNonfinite(cell.state) ? cell.column : 0);

/** 5.1 bits, saturated 0.06 bits, 6.27e4, NaN, not observed. @param {Cell} cell */
export function cellText({ state, bits, statistic }) {
  if (state === STATE.value) return valueText(statistic, bits);
  const { word } = STATE_WORDS[state] ?? { word: "unknown" };
  const counts = state === STATE.saturated || (isNonfinite(state) && statistic?.scale === "count");
  return counts ? `${word}, ${valueText(statistic, bits)}` : word;
}

/** @param {HeatmapRow} row */
export function rowName(row) {
  return row.count > 1 ? `${row.label} (worst of ${row.count})` : row.label;
}
