// The exponents of one tensor: decodes what the server sends, and shows them as a lane and as a table.

import { el, replace } from "../../format/dom.js";
import { count, magnitude, scale, steps } from "../../format/numbers.js";
import { decode } from "../../format/typed_array.js";
import { SCALES } from "../colours.js";
import { escapePlotText, layoutOf } from "../drawing.js";
import { colourBar } from "../legend.js";
import { nearLimits, powerTicks } from "../lines.js";

/** @typedef {{step: number, low: number, median: number, high: number, zero: number, subnormal: number}} Measured exponents, NaN where all is zero; fractions, NaN where unknown */
/**
 * @typedef {object} ExponentsModel
 * @property {import("../../types.js").FigureData | null} shares log10 of the share of the elements in each power of two, as the server sends it
 * @property {Measured[]} measured by step
 * @property {{low: number, high: number}} span exponents that hold an element, `high` exclusive
 * @property {any} meta
 */

/** @param {import("../../types.js").FigureAnswer} answer @returns {ExponentsModel} */
export function readExponents({ figure, meta }) {
  const shares = figure.data[0] ?? null;
  const served = /** @type {any} */ (meta).measured ?? {};
  const names = ["steps", "low", "median", "high", "zero_fraction", "subnormal_fraction"];
  const [steps, low, median, high, zero, subnormal] = names.map((name) => decode(served[name]));
  const measured = Array.from(steps, (step, i) => ({ step, low: low[i], median: median[i], high: high[i], zero: zero[i], subnormal: subnormal[i] }));
  return { shares, measured, span: spanOf(shares), meta };
}

/** @param {any} shares */
function spanOf(shares) {
  if (!shares) return { low: 0, high: 0 };
  const low = shares.y0 - 0.5;
  return { low, high: low + Number(String(shares.z.shape).split(",")[0]) };
}

/** The column drawn at a step: the last that was measured at or before it. @param {ExponentsModel} model @param {number} step @returns {Measured | null} */
export function measuredAt({ measured }, step) {
  return measured.findLast((one) => one.step <= step) ?? null;
}

/** 2⁻⁵, or none where all is zero. @param {number} exponent */
export const power = (exponent) => (Number.isFinite(exponent) ? scale(2 ** exponent) : "none");

/** A share as 0.02 %; under a hundredth of a percent only that it is there. @param {number} fraction */
export function percent(fraction) {
  if (!Number.isFinite(fraction)) return "not measured";
  if (fraction === 0) return "0 %";
  return fraction < 1e-4 ? "under 0.01 %" : `${Number((100 * fraction).toPrecision(3))} %`;
}

/** @param {Measured} one */
export function measuredText({ low, median, high, zero, subnormal }) {
  const body = Number.isFinite(median) ? `median ${power(median)}, 98 % in ${power(low)} to ${power(high + 1)}` : "all zero";
  return `${body}, ${percent(subnormal)} subnormal, ${percent(zero)} zero`;
}

// The exponents of one tensor as a lane: share of the elements in each power of two, and the dtype's limits.

/** @typedef {import("../frame.js").Frame} Frame */
/** @typedef {import("../theme.js").Palette} Palette */

/** Pixels beyond data and limits, for the limits' labels. */
const ROOM = 16;
const PLOT_HEIGHT = 260;
const LABELS = 12;

/** @param {ExponentsModel} model @param {Frame} frame @param {Palette} palette @returns {import("../drawing.js").Drawing} */
export function exponentDrawing(model, frame, palette) {
  const { span, shares } = model;
  const limits = limitsOf(model);
  const ends = [span.low, span.high, ...limits.map(({ at }) => at)];
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const room = ((high - low) * ROOM) / (frame.plotHeight - 2 * ROOM);
  const range = [low - room, high + room];
  const powers = powerTicks({ low: range[0], high: range[1] }, LABELS);
  const yaxis = { range, tickvals: powers, ticktext: powers.map((exponent) => scale(2 ** exponent)), tickfont: { size: 13 }, ticks: "" };
  const style = { type: "heatmap", zmin: -DECADES, zmax: 0, colorscale: palette.scales.share, showscale: false, hoverinfo: "skip", hoverongaps: false, zsmooth: false };
  const traces = shares ? [{ ...shares, ...style }] : [];
  const shapes = limits.map((limit) => shapeOf(limit, palette));
  const annotations = limits.map((limit) => labelOf(limit, palette));
  return { traces, layout: layoutOf(frame, palette, yaxis, { shapes, annotations }) };
}

/** @param {ExponentsModel} model */
function limitsOf({ meta, span }) {
  if (!meta.limits) return [];
  const { dtype, max_finite, smallest_normal, smallest_subnormal } = meta.limits;
  const named = [
    { value: max_finite, name: "largest finite", dash: "solid", above: true },
    { value: smallest_normal, name: "smallest normal", dash: "dash", above: false },
    { value: smallest_subnormal, name: "smallest subnormal", dash: "dot", above: false },
  ];
  const near = nearLimits(named.map(({ value }) => value), [2 ** span.low, 2 ** span.high]);
  return named.filter(({ value }) => near.includes(value)).map((one) => ({ ...one, at: Math.log2(one.value), text: `${one.name} ${dtype}, ${magnitude(one.value)}` }));
}

/** @typedef {{at: number, text: string, dash: string, above: boolean}} Limit */

/** @param {Limit} limit @param {Palette} palette */
const colourOf = ({ above }, palette) => (above ? palette.bad : palette.warning);

/** @param {Limit} limit @param {Palette} palette */
function shapeOf(limit, palette) {
  const { at, dash } = limit;
  return { type: "line", xref: "paper", x0: 0, x1: 1, y0: at, y1: at, line: { color: colourOf(limit, palette), width: 1.2, dash } };
}

/** With a ground of its own: cells lie under it. @param {Limit} limit @param {Palette} palette */
function labelOf(limit, palette) {
  const { at, text, above } = limit;
  const place = { xref: "paper", x: 0, xanchor: "left", y: at, yanchor: above ? "bottom" : "top", yshift: above ? 1 : -1 };
  return { ...place, text: escapePlotText(text), showarrow: false, borderpad: 0, bgcolor: palette.panel, font: { size: 11, color: colourOf(limit, palette) } };
}

/** @param {ExponentsModel} model @param {number} step */
function readout(model, step) {
  const measured = measuredAt(model, step);
  return measured ? `${measuredText(measured)}, at step ${count(measured.step)}` : "not measured yet";
}

/** @type {import("./lane_specs.js").LaneSpec} */
export const EXPONENTS = {
  name: "exponents",
  title: "Exponents",
  empty: "No histogram was recorded: attach(histograms=True) takes one with every full set.",
  plotHeight: () => PLOT_HEIGHT,
  read: readExponents,
  isEmpty: (/** @type {ExponentsModel} */ model) => !model.measured.length || !model.shares,
  draw: exponentDrawing,
  readout,
};

// The figure of exponents as a table: each measured step's median, spread, and what lies below the normal numbers.

const COLUMNS = ["Step", "1 % below", "Median", "99 % below", "Subnormal", "Zero"];
const MOST_ROWS = 12;
/** Decades of the colour scale. */
const DECADES = 6;

/** @returns {{element: HTMLElement, update: (model: ExponentsModel) => void}} */
export function createExponentTable() {
  const body = el("tbody");
  const head = el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col", class: "number" }, name)));
  const caption = el("caption");
  const table = el("table", { class: "dense tensor-table", "data-testid": "exponent-table" }, caption, el("thead", {}, head), body);
  const element = el("div", { hidden: true }, legend(), el("div", { class: "panel table-scroll" }, table));
  return {
    element,
    update(model) {
      const shown = model.measured.slice(-MOST_ROWS).reverse();
      element.hidden = shown.length === 0;
      caption.textContent = `Exponents, the last ${count(shown.length)} of ${count(model.measured.length)} that were measured in these steps`;
      replace(body, ...shown.map((one) => row(one, model.meta.steps_per_column)));
    },
  };
}

/** @param {Measured} one @param {number} per */
function row({ step, low, median, high, zero, subnormal }, per) {
  const when = per === 1 ? count(step) : steps({ start: step, stop: step + per });
  const cells = [when, below(low), power(median), below(high), percent(subnormal), percent(zero)];
  return el("tr", {}, ...cells.map((text) => el("td", { class: "number" }, text)));
}

/** All of a bin lies below the next power. @param {number} exponent */
const below = (exponent) => power(exponent + 1);

function legend() {
  const ticks = [0, 2, 4, DECADES].map((at) => ({ at: at / DECADES, text: at === DECADES ? "all" : `1e${at - DECADES}` }));
  const text = "share of the non-zero elements; each full set is drawn until the next";
  return el("div", { class: "legend", role: "note" }, colourBar(SCALES.share, ticks), el("span", { class: "legend-item" }, text));
}
