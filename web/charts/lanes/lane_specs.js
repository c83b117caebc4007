// The kinds of lanes by name: how each is read, drawn and described. A new figure is an entry here; pages that show it
// follow from it where `onOverview` is set, else they name it.

import { el } from "../../format/dom.js";
import { count, magnitude, reading, scale, seconds } from "../../format/numbers.js";
import { bytes } from "../../format/units.js";
import { decode } from "../../format/typed_array.js";
import { SCALES, statisticColours } from "../colours.js";
import { heatmapDrawing } from "../drawing.js";
import { cellOf, cellText, columnAt, readHeatmap, rowName, worstInColumn } from "../heatmap.js";
import { colourBar, lineItem } from "../legend.js";
import { ticksOf } from "../statistics.js";
import { plainLines, points, readLines, scaleLines, tensorLines, valueAt } from "../lines.js";

/** @typedef {import("../heatmap.js").HeatmapModel} HeatmapModel */
/** @typedef {import("../lines.js").LinesModel} LinesModel */
/**
 * @typedef {object} LaneSpec
 * @property {string} name of the figure
 * @property {string} title
 * @property {string} [unit] of the values of lines, as a file has them, where the server does not send it
 * @property {boolean} [onOverview] whether the Overview shows it, in the order of `LANES`
 * @property {string} empty what to show, and do, when there is nothing to draw
 * @property {(rows: number) => number} plotHeight pixels
 * @property {(answer: import("../../types.js").FigureAnswer) => any} [read] what the server sends of the figure of that name; none where the lane's options have `load`
 * @property {(model: any) => boolean} isEmpty
 * @property {(model: any, frame: import("../frame.js").Frame, palette: import("../theme.js").Palette, style?: import("./lane.js").LaneStyle) => import("../drawing.js").Drawing} draw
 * @property {boolean} [hasStyles] whether its lines can be smoothed, and drawn on a logarithmic axis
 * @property {(model: any, palette: import("../theme.js").Palette) => import("../colours.js").CellColours & Partial<import("../heatmap.js").HeatCells>} [cells] of a heatmap, how its cells are painted under what is drawn, and what of them is not as in the model
 * @property {(model: any, step: number, row: number | null) => string} readout
 * @property {() => HTMLElement} [legend] under the plot
 * @property {import("../saving/lane_files.js").Bar} [bar] its colours in a saved picture, where they are neither headroom nor of a statistic
 * @property {(model: any) => import("../../types.js").StepRange} [axis] of a figure whose columns are no steps: their places
 */

/** @typedef {{rank: number, bytes: number}} MemoryOfRank */

/** @param {number} least @param {number} perRow @param {number} most */
const byRows = (least, perRow, most) => (/** @type {number} */ rows) => Math.max(least, Math.min(most, rows * perRow));

/** @param {LinesModel} model */
const nothingDrawn = (model) => !model.series.some((series) => points(series).length) && !model.markSteps.length;

/**
 * Each series' value at a step, as text.
 * @param {(value: number) => string} unit @param {string[]} names @param {number} [least] steps from which a value is still of the step
 */
const seriesReadout = (unit, names, least = 1) => (/** @type {LinesModel} */ model, /** @type {number} */ step) => {
  const reach = Math.max(least, model.meta.steps_per_column);
  const parts = names.flatMap((name, i) => {
    const value = valueAt(model.series[i], step, reach);
    return value === null ? [] : `${name} ${unit(value)}`.trim();
  });
  if (model.markSteps.some((mark) => Math.abs(mark - step) < reach)) parts.push("not finite");
  return parts.join(", ") || "not measured";
};

/** @param {LinesModel} model @param {number} step */
function scaleReadout(model, step) {
  const value = valueAt(model.series[0], step, Math.max(1, model.meta.steps_per_column));
  const skipped = valueAt(model.series[1], step, model.meta.steps_per_column / 2) !== null;
  return `${scale(value)}${skipped ? ", skipped step" : ""}`;
}

/** @param {LinesModel} model @param {number} step */
function tensorReadout(model, step) {
  const [amax, amin, bad] = model.series.map((series) => valueAt(series, step, model.meta.steps_per_column / 2));
  const nonfinite = bad === undefined || bad === null ? "" : ", not finite";
  return `abs max ${magnitude(amax)}, abs min ${magnitude(amin)}${nonfinite}`;
}

/** The cell under the pointer, or the worst of the column when another lane is pointed at. @param {HeatmapModel} model @param {number} step @param {number | null} row */
function heatReadout(model, step, row) {
  const column = columnAt(model, step);
  if (column === null) return "";
  const cell = row === null ? worstInColumn(model, column) : cellOf(model, row, column);
  return cell ? `${rowName(model.rows[cell.row])}: ${cellText(cell)}` : "";
}

/**
 * A lane of lines that the server names, in the unit it gives: all that a figure of lines needs here.
 * @param {{name: string, title: string, empty: string, height?: number, colours?: (keyof import("../theme.js").Palette & ("accent" | "muted" | "second"))[], fromZero?: boolean, ends?: [number, number], legend?: () => HTMLElement, text?: (value: number) => string, onOverview?: boolean}} entry
 * `text`: a value to a reader
 * @returns {LaneSpec}
 */
function lineLane({ name, title, empty, legend, height = 72, colours = ["accent", "muted", "second"], fromZero, ends, text, onOverview }) {
  const unitOf = (/** @type {LinesModel} */ { meta }) => (meta.unit ? ` ${meta.unit}` : "");
  return {
    name,
    title,
    empty,
    onOverview,
    legend,
    plotHeight: () => height,
    read: readLines,
    hasStyles: !ends,
    isEmpty: nothingDrawn,
    draw: (model, frame, palette, style) => plainLines({ colours, unit: unitOf(model), fromZero, ends })(model, frame, palette, style),
    readout: (model, step) => {
      const names = model.series.map((/** @type {import("../lines.js").Series} */ one) => (model.series.length > 1 ? one.name : ""));
      return seriesReadout(text ?? ((value) => `${reading(value)}${unitOf(model)}`), names)(model, step);
    },
  };
}

const GIB = 2 ** 30;
/** Steps: agents sample memory every 50 ms, and short steps lie between two samples. */
const BETWEEN_SAMPLES = 64;

/** What the ranks hold, and of the newest steps which rank holds most and which least. @param {LinesModel & {meta: {by_rank?: {most: MemoryOfRank, least: MemoryOfRank} | null}}} model @param {number} step */
function memoryReadout(model, step) {
  const names = model.series.map(({ name }) => name);
  const text = seriesReadout((gib) => bytes(gib * GIB), names, BETWEEN_SAMPLES)(model, step);
  const ends = model.meta.by_rank;
  return ends ? `${text}; now most on rank ${ends.most.rank}, ${bytes(ends.most.bytes)}, least on rank ${ends.least.rank}, ${bytes(ends.least.bytes)}` : text;
}

const HEATMAP = {
  read: readHeatmap,
  draw: heatmapDrawing,
  cells: (/** @type {HeatmapModel} */ { statistic }, /** @type {import("../theme.js").Palette} */ palette) => statisticColours(statistic, palette),
  readout: heatReadout,
  isEmpty: (/** @type {HeatmapModel} */ model) => !model.rows.length || !model.columns,
};

/** @typedef {HeatmapModel & {tensors: import("../heatmap.js").HeatmapRow[]}} RanksModel columns are tensors in call order */

/** @param {RanksModel} model @param {number} place @param {number | null} row */
function ranksReadout(model, place, row) {
  const column = columnAt(model, place);
  const cell = column === null ? null : row === null ? worstInColumn(model, column) : cellOf(model, row, column);
  return cell ? `${rowName(model.rows[cell.row])}, ${rowName(model.tensors[cell.column])}: ${cellText(cell)}` : "";
}

/** From a sixteenth of the mean to sixteen times. */
const LOAD = { name: "load", title: "Load over the mean", scale: /** @type {const} */ ("load"), worst: /** @type {const} */ ("furthest"), worst_title: "furthest from the mean", is_full_set: false, low: -4, high: 4 };

const loadLegend = () => el("div", { class: "legend lane-legend" }, colourBar(SCALES.change, ticksOf(LOAD)));

/** The cell, and of its column the largest load and what was dropped. @param {HeatmapModel & {measured: {step: number, largest: number, dropped: number}[]}} model @param {number} step @param {number | null} row */
function expertsReadout(model, step, row) {
  const measured = model.measured.findLast((one) => one.step <= step);
  const cell = heatReadout(model, step, row);
  if (!measured || !cell) return cell;
  const dropped = Number.isFinite(measured.dropped) ? `, ${Number((100 * measured.dropped).toPrecision(2))} % dropped` : "";
  return `${cell}; MaxVio ${Number((measured.largest - 1).toPrecision(2))}${dropped}`;
}

/** @param {import("../../types.js").FigureAnswer} answer */
function readExperts(answer) {
  const served = /** @type {any} */ (answer.meta).measured ?? {};
  const [at, largest, dropped] = [decode(served.steps), decode(served.largest), decode(served.dropped_fraction)];
  return { ...readHeatmap(answer), measured: Array.from(at, (step, i) => ({ step, largest: largest[i], dropped: dropped[i] })) };
}

/** @type {Record<"loss" | "loss_scale" | "timeline" | "step_time" | "layers" | "memory" | "tensor" | "moments" | "ranks" | "routers" | "experts", LaneSpec>} */
export const LANES = {
  loss: lineLane({
    name: "loss",
    title: "Loss",
    empty: "No loss yet. Call log(loss=...) on what attach returned to see it here.",
    height: 84,
    onOverview: true,
  }),
  loss_scale: {
    name: "loss_scale",
    title: "Loss scale",
    onOverview: true,
    empty: "No loss scale. With a GradScaler, attach(..., scaler=scaler) records it.",
    plotHeight: () => 84,
    read: readLines,
    isEmpty: nothingDrawn,
    draw: scaleLines,
    readout: scaleReadout,
  },
  timeline: {
    ...HEATMAP,
    name: "timeline",
    title: "Least headroom by rank",
    onOverview: true,
    empty: "No rank has reported a step in this range.",
    plotHeight: byRows(30, 15, 260),
  },
  step_time: lineLane({
    name: "step_time",
    title: "Step time",
    empty: "No step time yet: it takes two steps.",
    fromZero: true,
    text: (ms) => seconds(ms / 1000),
    onOverview: true,
  }),
  memory: {
    ...lineLane({ name: "memory", title: "Memory", empty: "No memory was measured in these steps.", fromZero: true, colours: ["accent", "second", "muted", "muted"], onOverview: true }),
    readout: memoryReadout,
  },
  layers: {
    ...HEATMAP,
    name: "layers",
    title: "Headroom by layer",
    empty: "No tensor matches, or none was observed in these steps.",
    plotHeight: byRows(60, 12, 420),
  },
  ranks: {
    ...HEATMAP,
    name: "ranks",
    title: "Headroom by rank, call order",
    empty: "Nothing was observed on any rank.",
    plotHeight: byRows(30, 15, 260),
    read: (answer) => ({ ...readHeatmap(answer), tensors: answer.meta.tensors ?? [] }),
    axis: (/** @type {RanksModel} */ { tensors, units }) => ({ start: 0, stop: units ?? tensors.reduce((sum, { count: n }) => sum + n, 0) }),
    readout: ranksReadout,
  },
  routers: {
    ...HEATMAP,
    name: "routers",
    title: "Largest load by router",
    empty: "No router of experts was recorded.",
    plotHeight: byRows(60, 15, 320),
    legend: loadLegend,
  },
  experts: {
    ...HEATMAP,
    name: "experts",
    title: "Load of the experts",
    empty: "No token was routed in these steps.",
    plotHeight: byRows(80, 12, 480),
    read: readExperts,
    readout: expertsReadout,
    legend: loadLegend,
  },
  tensor: {
    name: "tensor",
    title: "Magnitude",
    empty: "This tensor was not observed in these steps.",
    plotHeight: () => 320,
    read: readLines,
    isEmpty: nothingDrawn,
    draw: tensorLines,
    readout: tensorReadout,
  },
  moments: lineLane({
    name: "moments",
    title: "Beside Adam's eps, share of the elements that move",
    empty: "No reading of the moments in these steps: attach reads them every moment_every steps.",
    height: 110,
    colours: ["accent", "second"],
    ends: [-4, 104],
    legend: () => el("div", { class: "legend lane-legend" }, lineItem("accent", "below eps"), lineItem("second", "underflowed to zero")),
  }),
};

/** One line for who cannot see the figure. @param {LaneSpec} spec @param {any} model @param {import("../../types.js").StepRange} range */
export function describe(spec, model, { start, stop }) {
  if (spec.axis) return `${spec.title}. ${spec.isEmpty(model) ? spec.empty : "Left and right arrows move by a tensor in call order, up and down by a rank, Enter opens."}`;
  const what = spec.isEmpty(model) ? spec.empty : `at the last step: ${spec.readout(model, stop - 1, null)}`;
  return `${spec.title}, steps ${count(start)} to ${count(stop - 1)}; ${what}. Left and right arrows move by a step, up and down by a row, Enter opens.`;
}
