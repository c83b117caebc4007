// A figure as a table for people: what it shows in words, bounded; the file has the rest. Pure.

import { percent, power } from "./components/exponents_model.js";
import { isHeat, spansOf } from "./figure_rows.js";
import { capital, magnitude, plural, reading, scale, steps } from "./format.js";
import { columnName, quantity } from "./quantities.js";
import { worstWords } from "./statistics.js";
import { cellOf, cellText, columnSteps, rowName, worstInRow, worstRows } from "./heatmap_model.js";

/** @typedef {import("./figure_axis.js").FigureAxis} FigureAxis */
/** @typedef {import("./figure_rows.js").Heat} Heat */
/** @typedef {import("./lines_model.js").LinesModel} LinesModel */
/** @typedef {import("./lines_model.js").Series} Series */
/** @typedef {{columns: readonly string[], rows: string[][], note: string}} Summary the first column names its row */

export const MOST_ROWS = 200;

/** How the lines of a figure are read, where that is not as a plain reading. @type {Record<string, {unit?: string, text?: (value: number) => string}>} */
const VALUES = { step_time: { unit: "ms" }, phases: { unit: "ms" }, loss_scale: { text: scale }, tensor: { text: magnitude } };
/** Series whose points say only that something happened there; `of`: what has to be recorded for none to mean no. @type {Record<string, {word: string, of?: string}>} */
const HAPPENED = { "skipped step": { word: "skipped", of: "skipped_step" }, "non-finite": { word: "NaN or Inf" } };

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
  const where = (/** @type {number} */ column) => (model.tensors ? rowName(model.tensors[column]) : steps(columnSteps(model, column)));
  const rows = worst.map((cell) => [rowName(model.rows[cell.row]), cellText(cell), where(cell.column), cellText(cellOf(model, cell.row, model.columns - 1))]);
  const note = isLong ? `The ${MOST_ROWS} worst of ${plural(model.rows.length, "row")}; the CSV file has every cell.` : "The CSV file has every cell.";
  return { columns: ["Row", capital(worstWords(model.statistic)), "Where first", model.tensors ? "Last in call order" : "At the end"], rows, note };
}

/** The same where nothing but values is known: the greatest of each row. @param {Heat} model @returns {Summary} */
function valueSummary(model) {
  const columns = Math.floor(model.z.length / Math.max(1, model.rows.length));
  const greatest = (/** @type {number} */ row) => {
    let found = row * columns;
    for (let at = found; at < (row + 1) * columns; at += 1) if (Number.isFinite(model.z[at]) && !(model.z[found] >= model.z[at])) found = at;
    return found;
  };
  const name = String(model.trace?.name ?? "value");
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
  const { unit = "", text = reading } = VALUES[name] ?? {};
  const byPlace = series.map(valuesByPlace);
  const marks = new Set(markSteps);
  const all = [...new Set([...byPlace.flatMap((values) => [...values.keys()]), ...marks])].sort((a, b) => a - b);
  const { shown, note } = newest(all, "row");
  const rows = shown.map((at) => [axis.say(at, meta.steps_per_column), ...series.map((one, i) => seriesCell(one, byPlace[i].get(at), text, marks.has(at), recorded))]);
  const head = series.map((one) => (one.name || "value") + (unit && `, ${unit}`));
  return { columns: [axis.title === "time" ? "Time" : "Step", ...head], rows, note };
}

/** A column of merged steps has its least and its greatest value. @param {Series} series */
function valuesByPlace({ x, y }) {
  /** @type {Map<number, number[]>} */
  const found = new Map();
  for (const [i, at] of Array.from(x).entries()) found.set(at, [...(found.get(at) ?? []), y[i]]);
  return found;
}

/** @param {Series} series @param {number[] | undefined} values @param {(value: number) => string} text @param {boolean} isMarked @param {readonly string[]} [recorded] */
function seriesCell({ name }, values, text, isMarked, recorded) {
  if (HAPPENED[name]) return values ? HAPPENED[name].word : noneText(HAPPENED[name], recorded);
  const known = (values ?? []).filter(Number.isFinite);
  const said = [...new Set([known[0], known.at(-1)])].filter((value) => value !== undefined).map((value) => text(Number(value)));
  if (isMarked) return [...said, "not finite"].join(", ");
  return said.join(" to ") || "not measured";
}

/** @param {{of?: string}} happened @param {readonly string[]} [recorded] */
const noneText = ({ of }, recorded) => (of && recorded && !recorded.includes(of) ? "not known" : "no");

/** @param {import("./components/gpu_bands.js").BandModel} model @param {FigureAxis} axis @returns {Summary} */
function bandSummary({ rows, meta }, axis) {
  const say = (/** @type {number} */ place) => axis.say(place, meta.steps_per_column);
  const all = rows.flatMap(({ name, marks, ...row }) => [
    ...spansOf(row).map(({ from, to, why }) => [name, say(from) === say(to) ? say(from) : `${say(from)} to ${say(to)}`, why]),
    ...marks.map(({ at, text }) => [name, say(at), text]),
  ]);
  const { shown, note } = newest(all, "row");
  return { columns: ["What", "When", "Message"], rows: [...shown], note };
}

/** @param {import("./components/exponents_model.js").ExponentsModel} model @param {FigureAxis} axis @returns {Summary} */
function exponentSummary({ measured, meta }, axis) {
  const { shown, note } = newest(measured, "measured column");
  const rows = shown.map(({ step, low, median, high, zero, subnormal }) => [
    axis.say(step, meta.steps_per_column), power(low + 1), power(median), power(high + 1), percent(subnormal), percent(zero),
  ]);
  return { columns: ["Step", "1 % below", "Median", "99 % below", "Subnormal", "Zero"], rows, note };
}
