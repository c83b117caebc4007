// Line charts: decodes what the server sends, and turns it into Plotly traces. Pure.

import { magnitude, reading, scale } from "../format/numbers.js";
import { decode } from "../format/typed_array.js";
import { escapePlotText, layoutOf, markTrace } from "./drawing.js";

/** @typedef {{name: string, x: ArrayLike<number>, y: ArrayLike<number>}} Series */
/** @typedef {{series: Series[], markSteps: number[], meta: import("../types.js").FigureMeta}} LinesModel */

/** @param {import("../types.js").FigureAnswer} answer @returns {LinesModel} */
export function readLines({ figure, meta }) {
  const series = figure.data.map(({ name, x, y }) => ({ name, x: decode(x), y: decode(y) }));
  return { series, markSteps: meta.nonfinite_steps ?? [], meta };
}

/** What there is to draw where nothing was asked for. @returns {LinesModel} */
export const noLines = () => ({ series: [], markSteps: [], meta: { start: 0, stop: 0, steps_per_column: 1, note: "" } });

/** Points that have a value, as pairs. @param {Series | undefined} series */
export function points(series) {
  if (!series) return [];
  return Array.from(series.x, (x, i) => ({ x, y: series.y[i] })).filter(({ y }) => Number.isFinite(y));
}

/**
 * The series with a hole wherever steps are missing: a line across steps that were not observed would make them look clean.
 * @param {Series} series @param {number} stepsPerColumn @returns {Series}
 */
export function broken(series, stepsPerColumn) {
  /** @type {number[]} */
  const x = [];
  /** @type {number[]} */
  const y = [];
  for (const [i, at] of Array.from(series.x).entries()) {
    if (i > 0 && at - series.x[i - 1] > 1.5 * stepsPerColumn) {
      x.push(at);
      y.push(NaN);
    }
    x.push(at);
    y.push(series.y[i]);
  }
  return { ...series, x, y };
}

/**
 * The value drawn at a step: that of the nearest point no further off than `reach` steps.
 * @param {Series | undefined} series @param {number} step @param {number} reach
 */
export function valueAt(series, step, reach) {
  if (!series || !series.x.length) return null;
  const right = firstAtLeast(series.x, step);
  const near = right > 0 && Math.abs(series.x[right - 1] - step) <= Math.abs((series.x[right] ?? Infinity) - step) ? right - 1 : right;
  const value = series.y[near];
  return Math.abs(series.x[near] - step) <= reach && Number.isFinite(value) ? value : null;
}

/** The steps merged into the point drawn at a step: columns are aligned to step 0. @param {LinesModel} model @param {number} step @returns {import("../types.js").StepRange} */
export function mergedSteps({ meta }, step) {
  const start = Math.floor(step / meta.steps_per_column) * meta.steps_per_column;
  return { start, stop: start + meta.steps_per_column };
}

/** @param {ArrayLike<number>} sorted @param {number} value */
function firstAtLeast(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * The powers of two that frame some values, or null without a positive one.
 * @param {number[]} values @param {number} [room] octaves beyond the data @returns {{low: number, high: number} | null}
 */
export function octaves(values, room = 1) {
  const powers = values.filter((value) => value > 0 && Number.isFinite(value)).map(Math.log2);
  if (!powers.length) return null;
  const low = powers.reduce((a, b) => Math.min(a, b));
  const high = powers.reduce((a, b) => Math.max(a, b));
  return { low: Math.floor(low) - room, high: Math.ceil(high) + room };
}

/** Whole powers to label, at most `most`. @param {{low: number, high: number}} span @param {number} most */
export function powerTicks({ low, high }, most) {
  const every = [1, 2, 4, 8, 16, 32, 64, 128].find((step) => (high - low) / step <= most) ?? 256;
  const first = Math.ceil(low / every) * every;
  return Array.from({ length: Math.floor((high - first) / every) + 1 }, (_, i) => first + i * every);
}

/** Limits further than this from the data would flatten it to a line. Octaves. */
const LIMIT_REACH = 40;

/** The dtype's limits that are near enough to show. @param {number[]} limits @param {number[]} values */
export function nearLimits(limits, values) {
  const span = octaves(values);
  return limits.filter((limit) => {
    const power = Math.log2(limit);
    return Number.isFinite(power) && (!span || (power > span.low - LIMIT_REACH && power < span.high + LIMIT_REACH));
  });
}

/**
 * "amin is measured every 16 steps" when it is missing in between, else null.
 * @param {Series | undefined} amax @param {Series | undefined} amin @param {number} stepsPerColumn
 */
export function cadenceNote(amax, amin, stepsPerColumn) {
  const measured = points(amin);
  const seen = points(amax).length;
  if (!seen || measured.length >= seen || stepsPerColumn > 1) return null;
  if (!measured.length) return "amin is not measured in these steps.";
  const gaps = measured.slice(1).map(({ x }, i) => x - measured[i].x).sort((a, b) => a - b);
  const every = gaps[gaps.length >> 1];
  const how = every ? `every ${every} steps` : `at ${measured.length} of ${seen} steps`;
  return `amin is measured ${how}, not measured in between.`;
}

// Line figures -> Plotly.

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./theme.js").Palette} Palette */
/** @typedef {import("./drawing.js").Drawing} Drawing */
/** @typedef {"accent" | "second" | "warning" | "muted"} LineColour */

/** With fewer points than this, each is drawn as a dot as well: a lone point has no line. */
const FEW = 80;
/** Pixels of plot for a label at its left. */
const LABEL_ROOM = 20;
/** Octaves beyond the limits, for their labels. */
const LIMIT_ROOM = 3;
/** Height of a skipped step's tick, which stands on the axis. Pixels. */
const TICK = 14;

/** @param {Series} series @param {string} colour @param {"linear" | "hv"} shape */
function lineTrace(series, colour, shape) {
  return {
    type: "scatter",
    mode: series.x.length < FEW ? "lines+markers" : "lines",
    x: series.x,
    y: series.y,
    connectgaps: false,
    hoverinfo: "skip",
    line: { color: colour, width: 1.6, shape },
    marker: { color: colour, size: 4 },
  };
}

/** @param {{x: number[], y: number[]}} at @param {object} marker */
const marksTrace = (at, marker) => ({ type: "scatter", mode: "markers", ...at, hoverinfo: "skip", marker });

/**
 * Lines over a plain axis from zero or from the data.
 * @param {{colours: LineColour[], unit: string, fromZero?: boolean, ends?: [number, number]}} style
 * @returns {(model: LinesModel, frame: Frame, palette: Palette, shown?: {isLog?: boolean, isSmooth?: boolean}) => Drawing}
 */
export const plainLines = ({ colours, unit, fromZero, ends }) => (model, frame, palette, { isLog = false, isSmooth = false } = {}) => {
  const colourOf = (/** @type {number} */ i) => palette[colours[i] ?? "muted"];
  const traces = model.series.flatMap((series, i) => {
    const line = lineTrace(series, colourOf(i), "linear");
    return isSmooth ? [lineTrace(smoothed(series), colourOf(i), "linear"), { ...line, opacity: FAINT }] : [line];
  });
  const values = model.series.flatMap((series) => points(series).map(({ y }) => y));
  const yaxis = isLog ? logAxis(values) : valueAxis(values, { unit, fromZero, ends });
  return { traces: [...traces.reverse(), markTrace(model.markSteps, frame, palette)], layout: layoutOf(frame, palette, yaxis) };
};

/** Of the line before smoothing, behind the smooth one. */
const FAINT = 0.28;
/** Of the mean so far in a smoothed value. */
const SMOOTH = 0.9;

/** Exponential moving average of a series, without the pull of its beginning to zero; holes stay. @param {Series} series @returns {Series} */
export function smoothed({ name, x, y }) {
  let mean = 0;
  let weight = 0;
  const smooth = Array.from(y, (value) => {
    if (!Number.isFinite(value)) return NaN;
    mean = SMOOTH * mean + (1 - SMOOTH) * value;
    weight = SMOOTH * weight + (1 - SMOOTH);
    return mean / weight;
  });
  return { name, x, y: smooth };
}

/** Room beyond the values, as a share of their span; of one value alone, as a share of it. */
const AXIS_ROOM = 0.08;
const LONE_ROOM = 0.5;
/** Labels of an axis, at most. */
const LABELS = 3;

/**
 * The axis of some values: of a constant one it is as fine as the value is small, where Plotly would show it from -1 to 1.
 * @param {readonly number[]} values @param {{unit: string, fromZero?: boolean, ends?: [number, number]}} style
 */
export function valueAxis(values, { unit, fromZero = false, ends }) {
  const range = ends ?? valueRange(values, fromZero);
  const ticks = roundValues(range, LABELS);
  return { range, tickvals: ticks, ticktext: ticks.map((value) => `${reading(value)}${unit}`) };
}

/** @param {readonly number[]} values @param {boolean} fromZero @returns {[number, number]} */
function valueRange(values, fromZero) {
  if (!values.length) return [0, 1];
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  const room = high > low ? AXIS_ROOM * (high - low) : LONE_ROOM * Math.abs(high) || 1;
  return fromZero && low >= 0 ? [0, high === 0 ? 1 : high + AXIS_ROOM * high] : [low - room, high + room];
}

/** Round values within a range. @param {readonly [number, number]} range @param {number} most */
function roundValues([low, high], most) {
  const span = high - low;
  const power = 10 ** Math.floor(Math.log10(span / most));
  const every = [1, 2, 2.5, 5, 10, 20].map((digit) => digit * power).find((one) => Math.floor(high / one) - Math.ceil(low / one) < most) ?? span;
  const first = Math.ceil(low / every);
  const count = Math.max(0, Math.floor(high / every) - first + 1);
  return Array.from({ length: count }, (_, i) => Number(((first + i) * every).toPrecision(12)));
}

/** Powers of ten. @param {readonly number[]} values those that are not positive have no place on it */
function logAxis(values) {
  const powers = values.filter((value) => value > 0).map(Math.log10);
  if (!powers.length) return { type: "log", range: [0, 1], tickvals: [], ticktext: [] };
  const low = powers.reduce((a, b) => Math.min(a, b));
  const high = powers.reduce((a, b) => Math.max(a, b));
  const room = Math.max(0.05, AXIS_ROOM * (high - low));
  const range = /** @type {[number, number]} */ ([low - room, high + room]);
  const whole = Array.from({ length: Math.max(0, Math.floor(range[1]) - Math.ceil(range[0]) + 1) }, (_, i) => 10 ** (Math.ceil(range[0]) + i));
  const every = Math.ceil(whole.length / LABELS);
  const ticks = whole.length > 1 ? whole.filter((_, i) => i % every === 0) : roundValues([10 ** range[0], 10 ** range[1]], LABELS).filter((value) => value > 0);
  return { type: "log", range, tickvals: ticks, ticktext: ticks.map((value) => reading(value)) };
}

/** Stairs in powers of two, with skipped steps along the bottom. @param {LinesModel} model @param {Frame} frame @param {Palette} palette @returns {Drawing} */
export function scaleLines(model, frame, palette) {
  const [stairs, skipped] = model.series;
  const span = octaves(points(stairs).map(({ y }) => y)) ?? { low: 0, high: 16 };
  const x = points(skipped).map((point) => point.x);
  const foot = 2 ** (span.low + ((span.high - span.low) * (TICK / 2 + 1)) / frame.plotHeight);
  const marks = marksTrace({ x, y: x.map(() => foot) }, { symbol: "line-ns-open", size: TICK, color: palette.bad, line: { width: 1.5 } });
  const traces = [lineTrace(stairs, palette.accent, "hv"), marks];
  return { traces, layout: layoutOf(frame, palette, log2Axis(span, Math.max(2, Math.floor(frame.plotHeight / LABEL_ROOM)))) };
}

/** amax as a line, amin as dots, the dtype's limits as labelled lines. @param {LinesModel} model @param {Frame} frame @param {Palette} palette @returns {Drawing} */
export function tensorLines(model, frame, palette) {
  const [amax, amin, nonfinite] = model.series;
  const values = [...points(amax), ...points(amin)].map(({ y }) => y);
  const limits = tensorLimits(model, values);
  const span = octaves([...values, ...limits.map(({ at }) => at)], LIMIT_ROOM) ?? { low: -24, high: 16 };
  const low = points(amin);
  const dots = marksTrace({ x: low.map(({ x }) => x), y: low.map(({ y }) => y) }, { color: palette.second, size: 5, symbol: "circle-open" });
  const bad = nonfinite ? Array.from(nonfinite.x) : [];
  const layout = layoutOf(frame, palette, log2Axis(span, 12), { shapes: limits.map((limit) => limitShape(limit, palette)) });
  return { traces: [lineTrace(broken(amax, model.meta.steps_per_column), palette.accent, "linear"), dots, markTrace(bad, frame, palette)], layout };
}

/** @param {LinesModel} model @param {number[]} values */
function tensorLimits({ meta }, values) {
  if (!meta.limits) return [];
  const { dtype, max_finite, smallest_normal } = meta.limits;
  const named = [
    { at: max_finite, text: `largest finite ${dtype}, ${magnitude(max_finite)}`, side: "top" },
    { at: smallest_normal, text: `smallest normal ${dtype}, ${magnitude(smallest_normal)}`, side: "bottom" },
  ];
  const near = nearLimits(named.map(({ at }) => at), values);
  return named.filter(({ at }) => near.includes(at));
}

/** @param {{at: number, text: string, side: string}} limit @param {Palette} palette */
function limitShape({ at, text, side }, palette) {
  const colour = side === "top" ? palette.bad : palette.warning;
  return {
    type: "line",
    xref: "paper",
    x0: 0,
    x1: 1,
    y0: at,
    y1: at,
    line: { color: colour, width: 1.2, dash: side === "top" ? "solid" : "dash" },
    label: { text: escapePlotText(text), textposition: "start", yanchor: side === "top" ? "bottom" : "top", font: { size: 11, color: colour } },
  };
}

/** @param {{low: number, high: number}} span @param {number} most */
function log2Axis(span, most) {
  const powers = powerTicks(span, most);
  return {
    type: "log",
    range: [span.low, span.high].map((power) => power * Math.LOG10E * Math.LN2),
    tickvals: powers.map((power) => 2 ** power),
    ticktext: powers.map((power) => scale(2 ** power)),
    tickfont: { size: 13 }, // its superscripts are small
  };
}
