// A chart's values as rows: every value for a file, and a bounded table of text for people. Pure.

import { capital, magnitude, plural, reading, scale, steps } from "../../format/numbers.js";
import { decode } from "../../format/typed_array.js";
import { columnName, quantity } from "../../format/units.js";
import { percent, power } from "../lanes/exponents.js";
import { STATE_LABELS, worstTitle } from "../statistics.js";
import { cellOf, cellText, columnSteps, placeText, rowName, worstInRow, worstRows } from "../heatmap.js";

/** @typedef {import("./files.js").Rows} Rows */
/** @typedef {import("./files.js").Value} Value */
/** @typedef {import("../frame.js").FigureAxis} FigureAxis */
/** @typedef {{name: string, title: string, scale: string}} Statistic what a heatmap shows, where that is not headroom */
/** @typedef {import("../heatmap.js").HeatmapModel & {tensors?: import("../../types.js").HeatmapRow[], statistic?: Statistic | null}} Heat columns are `tensors`, where there are any, else steps; some have no states */
/** @typedef {import("../lines.js").LinesModel} LinesModel */
/** @typedef {import("../lanes/exponents.js").ExponentsModel} ExponentsModel */
/** @typedef {import("../../types.js").BandModel} BandModel */

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
const isHeat = (model) => Boolean(model?.rows && model.z);

/** What the cells hold, as a column's name. @param {Heat} model */
const valueName = ({ statistic, states, name }) => statistic?.name ?? (states?.length ? "headroom_bits" : name);

/** Magnitudes and counts are drawn as powers of two. @param {Heat} model @param {number} value */
function unscaled({ statistic }, value) {
  if (!Number.isFinite(value)) return null;
  const plain = ["log2", "ratio"].includes(statistic?.scale ?? "") ? 2 ** value : statistic?.scale === "count" ? 2 ** value - 1 : value;
  return Number(plain.toPrecision(7));
}

/** @param {Heat} model @returns {Rows} */
function heatRows(model) {
  const place = model.tensors ? ["tensor"] : ["first_step", "last_step"];
  return { columns: ["row", ...place, "state", valueName(model)], rows: heatCells(model) };
}

/** @param {Heat} model @returns {Generator<Value[]>} */
function* heatCells(model) {
  const { z: values, columns } = model;
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
  if (states?.length) return STATE_LABELS[states[at]]?.label ?? "unknown";
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
  return { columns: [...axis.names, "series", "value", "unit", "state"], rows: [...points, ...marks] };
}

/** The spans of a row; where a row is a card, each by its own reason. @param {any} row @returns {{from: number, to: number, why: string}[]} */
function spansOf({ bands, reasons }) {
  /** @type {{name: string, bands: {from: number, to: number}[]}[]} */
  const named = reasons ?? [{ name: "", bands }];
  return named.flatMap(({ name, bands: spans }) => spans.map(({ from, to }) => ({ from, to, why: name })));
}

/** @param {BandModel} model @param {FigureAxis} axis @returns {Rows} */
function bandRows({ rows, meta }, axis) {
  const per = meta.steps_per_column;
  const one = (/** @type {number} */ place) => axis.cells(place, per)[0];
  const spans = rows.flatMap(({ name, marks, ...row }) => [
    ...spansOf(row).map(({ from, to, why }) => [name, one(from), one(to), why || null]),
    ...marks.map(({ at, text }) => [name, one(at), one(at), text]),
  ]);
  return { columns: ["what", "from", "to", "message"], rows: spans };
}

/** The share of the non-zero elements in each power of two. @param {ExponentsModel} model @returns {Rows} */
function exponentRows({ shares: sent, span }) {
  const edges = decode(sent?.x);
  const shares = decode(sent?.z);
  const columns = Math.max(0, edges.length - 1);
  const rows = Array.from(shares, (share, at) => {
    const column = at % columns;
    return [Math.max(0, Math.ceil(edges[column])), Math.ceil(edges[column + 1]) - 1, span.low + Math.floor(at / columns), Number((10 ** share).toPrecision(6))];
  });
  return { columns: ["first_step", "last_step", "exponent", "share"], rows: rows.filter(([, , , share]) => Number.isFinite(share)) };
}

// A figure as a table for people: what it shows as text, bounded; the file has the rest.

/** @typedef {import("../lines.js").Series} Series */
/** @typedef {{columns: readonly string[], rows: string[][], note: string}} Summary the first column names its row */

export const MOST_ROWS = 200;

/** How the values of a figure's lines are read, where that is not as a plain reading. @type {Record<string, (value: number) => string>} */
const TEXT = { loss_scale: scale, tensor: magnitude };
/** Series whose points mean only that something happened there; `of`: what has to be recorded for none to mean no. @type {Record<string, {text: string, of?: string}>} */
const HAPPENED = { "skipped step": { text: "skipped", of: "skipped_step" }, "non-finite": { text: "NaN or Inf" } };

/**
 * The table of whatever a lane has read, by the shape of its model; null of a model that is not known here.
 * @param {any} model @param {string} name of the figure @param {FigureAxis} axis @param {readonly string[]} [recorded] series of the run; all, without
 * @returns {Summary | null}
 */
export function summaryOf(model, name, axis, recorded) {
  if (model?.measured) return exponentSummary(model, axis);
  if (isHeat(model)) return model.states?.length ? heatSummary(model) : valueSummary(model);
  if (model?.series) return lineSummary(model, name, axis, recorded);
  return model?.rows?.every((/** @type {any} */ row) => row.bands && row.marks) ? bandSummary(model, axis) : null;
}

/** The newest rows, where there are too many. @template R @param {readonly R[]} rows @param {string} what @returns {{shown: readonly R[], note: string}} */
function newest(rows, what) {
  const note = rows.length > MOST_ROWS ? `The last ${MOST_ROWS} of ${plural(rows.length, what)}; the CSV file has all.` : "";
  return { shown: rows.slice(-MOST_ROWS), note };
}

/** A row a row: the worst that it holds, where that is, and what it ends with. @param {Heat} model @returns {Summary} */
function heatSummary(model) {
  const isLong = model.rows.length > MOST_ROWS;
  const worst = isLong ? worstRows(model, MOST_ROWS) : model.rows.flatMap((_, row) => worstInRow(model, row) ?? []);
  const rows = worst.map((cell) => [rowName(model.rows[cell.row]), cellText(cell), placeText(/** @type {any} */ (model), cell), cellText(cellOf(model, cell.row, model.columns - 1))]);
  const note = isLong ? `The ${MOST_ROWS} worst of ${plural(model.rows.length, "row")}; the CSV file has every cell.` : "The CSV file has every cell.";
  return { columns: ["Row", capital(worstTitle(model.statistic)), "Where first", model.tensors ? "Last in call order" : "At the end"], rows, note };
}

/** The same where nothing but values is known: the greatest of each row. @param {Heat} model @returns {Summary} */
function valueSummary(model) {
  const columns = Math.floor(model.z.length / Math.max(1, model.rows.length));
  const greatest = (/** @type {number} */ row) => {
    let best = row * columns;
    for (let at = best; at < (row + 1) * columns; at += 1) if (Number.isFinite(model.z[at]) && !(model.z[best] >= model.z[at])) best = at;
    return best;
  };
  const { name } = model;
  const rows = model.rows.slice(0, MOST_ROWS).map((one, row) => {
    const at = greatest(row);
    const isKnown = Number.isFinite(model.z[at]);
    return [rowName(one), isKnown ? quantity(name, model.z[at]) : "not known", isKnown ? steps(columnSteps(model, at % columns)) : "nowhere"];
  });
  const note = model.rows.length > MOST_ROWS ? `${MOST_ROWS} of ${plural(model.rows.length, "row")}; the CSV file has every cell.` : "The CSV file has every cell.";
  return { columns: ["Row", `Greatest ${columnName(name).toLowerCase()}`, "Where first"], rows, note };
}

/** A row a place, a column a series. @param {LinesModel} model @param {string} name @param {FigureAxis} axis @param {readonly string[]} [recorded] @returns {Summary} */
function lineSummary({ series, markSteps, meta }, name, axis, recorded) {
  const { unit = "" } = meta;
  const text = TEXT[name] ?? reading;
  const byPlace = series.map(valuesByPlace);
  const marks = new Set(markSteps);
  const all = [...new Set([...byPlace.flatMap((values) => [...values.keys()]), ...marks])].sort((a, b) => a - b);
  const { shown, note } = newest(all, "row");
  const rows = shown.map((at) => [axis.text(at, meta.steps_per_column), ...series.map((one, i) => seriesCell(one, byPlace[i].get(at), text, marks.has(at), recorded))]);
  const head = series.map((one) => (one.name || "value") + (unit && `, ${unit}`));
  return { columns: [axis.title === "time" ? "Time" : "Step", ...head], rows, note };
}

/** A column of merged steps has its least and its greatest value. @param {Series} series */
function valuesByPlace({ x, y }) {
  /** @type {Map<number, number[]>} */
  const byPlace = new Map();
  for (const [i, at] of Array.from(x).entries()) byPlace.set(at, [...(byPlace.get(at) ?? []), y[i]]);
  return byPlace;
}

/** @param {Series} series @param {number[] | undefined} values @param {(value: number) => string} text @param {boolean} isMarked @param {readonly string[]} [recorded] */
function seriesCell({ name }, values, text, isMarked, recorded) {
  if (HAPPENED[name]) return values ? HAPPENED[name].text : noneText(HAPPENED[name], recorded);
  const known = (values ?? []).filter(Number.isFinite);
  const texts = [...new Set([known[0], known.at(-1)])].filter((value) => value !== undefined).map((value) => text(Number(value)));
  if (isMarked) return [...texts, "not finite"].join(", ");
  return texts.join(" to ") || "not measured";
}

/** @param {{of?: string}} happened @param {readonly string[]} [recorded] */
const noneText = ({ of }, recorded) => (of && recorded && !recorded.includes(of) ? "not known" : "no");

/** @param {BandModel} model @param {FigureAxis} axis @returns {Summary} */
function bandSummary({ rows, meta }, axis) {
  const textOf = (/** @type {number} */ place) => axis.text(place, meta.steps_per_column);
  const all = rows.flatMap(({ name, marks, ...row }) => [
    ...spansOf(row).map(({ from, to, why }) => [name, textOf(from) === textOf(to) ? textOf(from) : `${textOf(from)} to ${textOf(to)}`, why]),
    ...marks.map(({ at, text }) => [name, textOf(at), text]),
  ]);
  const { shown, note } = newest(all, "row");
  return { columns: ["What", "When", "Message"], rows: [...shown], note };
}

/** @param {import("../lanes/exponents.js").ExponentsModel} model @param {FigureAxis} axis @returns {Summary} */
function exponentSummary({ measured, meta }, axis) {
  const { shown, note } = newest(measured, "measured column");
  const rows = shown.map(({ step, low, median, high, zero, subnormal }) => [
    axis.text(step, meta.steps_per_column), power(low + 1), power(median), power(high + 1), percent(subnormal), percent(zero),
  ]);
  return { columns: ["Step", "1 % below", "Median", "99 % below", "Subnormal", "Zero"], rows, note };
}
