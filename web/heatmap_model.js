// A served heatmap, decoded: cells, worst of a row or column, words for a cell. Pure.

import { STATE, STATE_WORDS, badness, isNonfinite } from "./headroom.js";
import { bits } from "./format.js";
import { decode } from "./typed_array.js";

/** @typedef {import("./types.js").FigureAnswer} FigureAnswer */
/** @typedef {import("./types.js").HeatmapRow} HeatmapRow */
/** @typedef {{row: number, column: number, state: number, bits: number}} Cell */
/**
 * @typedef {object} HeatmapModel
 * @property {any} trace as served
 * @property {HeatmapRow[]} rows
 * @property {number} columns
 * @property {ArrayLike<number>} z
 * @property {ArrayLike<number>} states
 * @property {number} x0
 * @property {number} dx
 * @property {number[]} markSteps centres of the columns that hold a NaN or Inf
 */

/** @param {FigureAnswer} answer @returns {HeatmapModel} */
export function readHeatmap({ figure, meta }) {
  const trace = figure.data[0];
  const rows = meta.rows ?? [];
  const states = decode(meta.states);
  const { x0 = 0, dx = 1 } = trace;
  return {
    trace, rows, states, x0, dx,
    z: decode(trace.z),
    columns: rows.length ? states.length / rows.length : 0,
    markSteps: (meta.nonfinite_columns ?? []).map((column) => x0 + column * dx),
  };
}

/** @param {HeatmapModel} model @param {number} row @param {number} column @returns {Cell} */
export function cellOf(model, row, column) {
  const at = row * model.columns + column;
  return { row, column, state: model.states[at], bits: model.z[at] };
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

/** Of equals the first, so that it is where the trouble began. @param {Iterable<Cell>} cells @returns {Cell | null} */
function worst(cells) {
  /** @type {Cell | null} */
  let found = null;
  for (const cell of cells) {
    if (!found || badness(cell.state, cell.bits) > badness(found.state, found.bits)) found = cell;
  }
  return found;
}

/** @param {HeatmapModel} model @param {number} column */
export function worstInColumn(model, column) {
  return worst(model.rows.map((_, row) => cellOf(model, row, column)));
}

/** @param {HeatmapModel} model @param {number} row */
export function worstInRow(model, row) {
  return worst(Array.from({ length: model.columns }, (_, column) => cellOf(model, row, column)));
}

/** The rows with the least headroom, worst first; those with a NaN or Inf in order of step, then call. @param {HeatmapModel} model @param {number} limit */
export function worstRows(model, limit) {
  return model.rows
    .flatMap((_, row) => worstInRow(model, row) ?? [])
    .sort((a, b) => badness(b.state, b.bits) - badness(a.state, a.bits) || began(a) - began(b) || a.row - b.row)
    .slice(0, limit);
}

/** @param {Cell} cell */
const began = (cell) => (isNonfinite(cell.state) ? cell.column : 0);

/** 5.1 bits, saturated 0.06 bits, NaN, not observed. @param {Cell} cell */
export function cellText(cell) {
  if (cell.state === STATE.value) return bits(cell.bits);
  const { word } = STATE_WORDS[cell.state] ?? { word: "unknown" };
  return cell.state === STATE.saturated ? `${word}, ${bits(cell.bits)}` : word;
}

/** @param {HeatmapRow} row */
export function rowName(row) {
  return row.count > 1 ? `${row.label} (worst of ${row.count})` : row.label;
}
