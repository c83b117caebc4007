// Line figures -> Plotly. Pure.

import { layoutOf, markTrace } from "./figure_drawing.js";
import { magnitude, scale } from "./format.js";
import { broken, nearLimits, octaves, points, powerTicks } from "./lines_model.js";
import { escapePlotText } from "./plot_text.js";

/** @typedef {import("./lines_model.js").LinesModel} LinesModel */
/** @typedef {import("./lines_model.js").Series} Series */
/** @typedef {import("./figure_frame.js").Frame} Frame */
/** @typedef {import("./theme.js").Palette} Palette */
/** @typedef {import("./figure_drawing.js").Drawing} Drawing */
/** @typedef {"accent" | "second" | "warning" | "muted"} LineColour */

/** With fewer points than this, each is drawn as a dot as well: a lone point has no line. */
const FEW = 80;
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
 * @param {{colours: LineColour[], unit: string, fromZero?: boolean}} style
 * @returns {(model: LinesModel, frame: Frame, palette: Palette) => Drawing}
 */
export const plainLines = ({ colours, unit, fromZero }) => (model, frame, palette) => {
  const traces = model.series.map((series, i) => lineTrace(series, palette[colours[i] ?? "muted"], "linear")).reverse();
  const yaxis = { nticks: 4, ticksuffix: unit, rangemode: fromZero ? "tozero" : "normal" };
  return { traces: [...traces, markTrace(model.markSteps, frame, palette)], layout: layoutOf(frame, palette, yaxis) };
};

/** Stairs in powers of two, with skipped steps along the bottom. @param {LinesModel} model @param {Frame} frame @param {Palette} palette @returns {Drawing} */
export function scaleLines(model, frame, palette) {
  const [stairs, skipped] = model.series;
  const span = octaves(points(stairs).map(({ y }) => y)) ?? { low: 0, high: 16 };
  const x = points(skipped).map((point) => point.x);
  const foot = 2 ** (span.low + ((span.high - span.low) * (TICK / 2 + 1)) / frame.plotHeight);
  const marks = marksTrace({ x, y: x.map(() => foot) }, { symbol: "line-ns-open", size: TICK, color: palette.bad, line: { width: 1.5 } });
  const traces = [lineTrace(stairs, palette.accent, "hv"), marks];
  return { traces, layout: layoutOf(frame, palette, log2Axis(span, 4)) };
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
