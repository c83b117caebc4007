// Heatmaps: decodes what the server sends, finds the worst cells, and colours cells by value and state. Pure.

import { decode } from "../format/typed_array.js";
import { axisRange } from "./frame.js";
import { SCALE_TOP, STATE, STATE_WORDS, isNonfinite, plotlyScale } from "./headroom.js";
import { HEADROOM, valueText } from "./statistics.js";
import { channels } from "./theme.js";

/** @typedef {import("../types.js").FigureAnswer} FigureAnswer */
/** @typedef {import("./statistics.js").Statistic} Statistic */
/** @typedef {import("../types.js").HeatmapRow & {module?: string, listed?: number[]}} HeatmapRow `module`: one that is closed; `listed`: tensors that are no range in call order */
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
 * @property {import("../pages/layers/module_tree.js").Module[]} [modules] of the tensors shown, where they were asked for
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

// What is painted of a heatmap, and where: a colour a value, a pattern a state.

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./drawing.js").Drawing} Drawing */
/**
 * @typedef {object} HeatCells
 * @property {number} rows
 * @property {number} columns
 * @property {number} x0 centre of the first column
 * @property {number} dx
 * @property {ArrayLike<number>} z row by row; not finite: no colour
 * @property {ArrayLike<number>} states
 * @property {number} low at and below it all has the first colour
 * @property {number} high
 * @property {readonly [number, string][]} colours by their place between low and high, 0 to 1
 */

/**
 * On the headroom scale, unless said otherwise.
 * @param {{rows: readonly unknown[]} & Pick<HeatCells, "columns" | "x0" | "dx" | "z" | "states">} model @param {import("./theme.js").Palette} palette
 * @param {Partial<Pick<HeatCells, "low" | "high" | "colours">>} [scale]
 * @returns {HeatCells}
 */
export function heatCells({ rows, columns, x0, dx, z, states }, palette, scale) {
  return { rows: rows.length, columns, x0, dx, z, states, low: 0, high: SCALE_TOP, colours: plotlyScale(palette.headroom), ...scale };
}

/** Where the cells lie on the plot, in its pixels: wider than it where a part of them is shown. @param {HeatCells} cells @param {Frame} frame */
export function cellsBox({ columns, x0, dx }, { plotWidth, plotHeight, range }) {
  const [start, stop] = axisRange(range);
  const scale = plotWidth / (stop - start);
  return { left: (x0 - dx / 2 - start) * scale, width: Math.max(1, columns * dx * scale), height: plotHeight };
}

/** Colours of a scale that is looked up: more than a screen tells apart. */
const SHADES = 1024;

/**
 * The colours between those of a scale: of `SHADES` equal parts red, green, blue and opaque.
 * @param {readonly [number, string][]} colours
 */
export function shadesOf(colours) {
  const shades = new Uint8ClampedArray(4 * SHADES);
  const stops = colours.map(([at, colour]) => ({ at, parts: channels(colour) }));
  for (let i = 0, below = 0; i < SHADES; i += 1) {
    const at = i / (SHADES - 1);
    while (below < stops.length - 2 && at > stops[below + 1].at) below += 1;
    const [from, to] = [stops[below], stops[below + 1]];
    const share = (at - from.at) / (to.at - from.at);
    shades.set([...from.parts.map((part, c) => part + (to.parts[c] - part) * share), 255], 4 * i);
  }
  return shades;
}

/** A pixel a cell; transparent where there is no value. @param {HeatCells} cells @param {Uint8ClampedArray} shades of `shadesOf` */
export function cellPixels({ z, low, high }, shades) {
  const pixels = new Uint32Array(z.length);
  const colours = new Uint32Array(shades.buffer);
  const scale = (SHADES - 1) / (high - low);
  for (let i = 0; i < z.length; i += 1) {
    if (Number.isFinite(z[i])) pixels[i] = colours[Math.max(0, Math.min(SHADES - 1, Math.round((z[i] - low) * scale)))];
  }
  return new Uint8ClampedArray(pixels.buffer);
}

/** With its cells, as a file has them: as Plotly's heatmap, which has a scale, and the states as an image. @param {Drawing} drawing @param {HeatCells} cells @param {Frame} frame @param {string} states data URL of a picture of the plot @returns {Drawing} */
export function withCells({ traces, layout }, cells, frame, states) {
  const { rows, columns, x0, dx, z, low, high, colours } = cells;
  const lines = Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (_each, column) => z[row * columns + column]));
  const heat = { type: "heatmap", z: lines, x0, dx, y0: 0, dy: 1, zmin: low, zmax: high, zsmooth: false, colorscale: colours, showscale: false, hoverinfo: "skip" };
  return { traces: [heat, ...traces], layout: { ...layout, images: [plotImage(states, rows, frame)] } };
}

/** @param {string} source @param {number} rows @param {Frame} frame */
function plotImage(source, rows, { range }) {
  const [start, stop] = axisRange(range);
  const place = { xref: "x", yref: "y", x: start, y: -0.5, xanchor: "left", yanchor: "top" };
  return { source, ...place, sizex: stop - start, sizey: rows, sizing: "stretch", layer: "above" };
}
