// Every value that a figure shows, a row a value, for a file. Pure.

import { STATE_WORDS } from "./headroom.js";
import { columnSteps, rowName } from "./heatmap_model.js";
import { decode } from "./typed_array.js";

/** @typedef {import("./csv.js").Rows} Rows */
/** @typedef {import("./csv.js").Value} Value */
/** @typedef {import("./figure_axis.js").FigureAxis} FigureAxis */
/** @typedef {{name: string, title: string, scale: string}} Statistic what a heatmap shows, where that is not headroom */
/** @typedef {import("./heatmap_model.js").HeatmapModel & {tensors?: import("./types.js").HeatmapRow[], statistic?: Statistic | null}} Heat columns are `tensors`, where there are any, else steps; some have no states */
/** @typedef {import("./lines_model.js").LinesModel} LinesModel */
/** @typedef {import("./components/exponents_model.js").ExponentsModel} ExponentsModel */
/** @typedef {import("./components/gpu_bands.js").BandModel} BandModel */

/**
 * The rows of whatever a lane has read, by the shape of its model; null of a model that is not known here.
 * @param {any} model @param {FigureAxis} axis @param {string} [unit] of lines: of their values
 * @returns {Rows | null}
 */
export function rowsOf(model, axis, unit) {
  if (model?.measured) return exponentRows(model);
  if (isHeat(model)) return heatRows(model);
  if (model?.series) return lineRows(model, axis, unit);
  return model?.rows?.every((/** @type {any} */ row) => row.bands && row.marks) ? bandRows(model, axis) : null;
}

/** @param {any} model @returns {model is Heat} */
export const isHeat = (model) => Boolean(model?.rows && (model.states || model.trace?.z));

/** What the cells hold, as a column's name. @param {Heat} model */
const valueName = ({ statistic, states, trace }) => statistic?.name ?? (states?.length ? "headroom_bits" : String(trace?.name ?? "value"));

/** Magnitudes and counts are drawn as powers of two. @param {Heat} model @param {number} value */
function unscaled({ statistic }, value) {
  if (!Number.isFinite(value)) return null;
  const plain = statistic?.scale === "log2" ? 2 ** value : statistic?.scale === "count" ? 2 ** value - 1 : value;
  return Number(plain.toPrecision(7));
}

/** @param {Heat} model @returns {Rows} */
function heatRows(model) {
  const place = model.tensors ? ["tensor"] : ["first_step", "last_step"];
  return { columns: ["row", ...place, "state", valueName(model)], textColumns: ["row", "tensor", "state"], rows: heatCells(model) };
}

/** @param {Heat} model @returns {Generator<Value[]>} */
function* heatCells(model) {
  const values = model.z ?? decode(model.trace.z);
  const columns = Math.floor(values.length / Math.max(1, model.rows.length));
  for (const [row, one] of model.rows.entries()) {
    const label = rowName(one);
    for (let column = 0; column < columns; column += 1) {
      const value = values[row * columns + column];
      yield [label, ...columnCells(model, column), stateText(model, row * columns + column, value), unscaled(model, value)];
    }
  }
}

/** @param {Heat} model @param {number} at @param {number} value */
function stateText({ states }, at, value) {
  if (states?.length) return STATE_WORDS[states[at]]?.word ?? "unknown";
  return Number.isFinite(value) ? "value" : "not known";
}

/** @param {Heat} model @param {number} column @returns {Value[]} */
function columnCells(model, column) {
  if (model.tensors) return [rowName(model.tensors[column])];
  const { start, stop } = columnSteps(model, column);
  return [start, stop - 1];
}

/** A point a row: a column of merged steps has two, its least and its greatest. @param {LinesModel} model @param {FigureAxis} axis @param {string} [unit] @returns {Rows} */
function lineRows({ series, markSteps, meta }, axis, unit = "") {
  const per = meta.steps_per_column;
  const points = series.flatMap(({ name, x, y }) => Array.from(x, (at, i) => [...axis.cells(at, per), name, y[i], unit, Number.isFinite(y[i]) ? "value" : "not measured"]));
  const marks = markSteps.map((at) => [...axis.cells(at, per), series[0]?.name ?? "", null, unit, "not finite"]);
  const textColumns = [...(axis.isText ? axis.names : []), "series", "unit", "state"];
  return { columns: [...axis.names, "series", "value", "unit", "state"], textColumns, rows: [...points, ...marks] };
}

/** The spans of a row; where a row is a card, each by its own reason. @param {any} row @returns {{from: number, to: number, why: string}[]} */
export function spansOf({ bands, reasons }) {
  /** @type {{name: string, bands: {from: number, to: number}[]}[]} */
  const named = reasons ?? [{ name: "", bands }];
  return named.flatMap(({ name, bands: spans }) => spans.map(({ from, to }) => ({ from, to, why: name })));
}

/** @param {BandModel} model @param {FigureAxis} axis @returns {Rows} */
function bandRows({ rows, meta }, axis) {
  const per = meta.steps_per_column;
  const one = (/** @type {number} */ place) => axis.cells(place, per)[0];
  const found = rows.flatMap(({ name, marks, ...row }) => [
    ...spansOf(row).map(({ from, to, why }) => [name, one(from), one(to), why || null]),
    ...marks.map(({ at, text }) => [name, one(at), one(at), text]),
  ]);
  return { columns: ["what", "from", "to", "message"], textColumns: ["what", "message", ...(axis.isText ? ["from", "to"] : [])], rows: found };
}

/** The share of the non-zero elements in each power of two. @param {ExponentsModel} model @returns {Rows} */
function exponentRows({ trace, span }) {
  const edges = decode(trace?.x);
  const shares = decode(trace?.z);
  const columns = Math.max(0, edges.length - 1);
  const rows = Array.from(shares, (share, at) => {
    const column = at % columns;
    return [Math.max(0, Math.ceil(edges[column])), Math.ceil(edges[column + 1]) - 1, span.low + Math.floor(at / columns), Number((10 ** share).toPrecision(6))];
  });
  return { columns: ["first_step", "last_step", "exponent", "share"], textColumns: [], rows: rows.filter(([, , , share]) => Number.isFinite(share)) };
}
