// The exponents of one tensor as a lane: share of the elements in each power of two, and the dtype's limits.

import { layoutOf } from "../figure_drawing.js";
import { count, magnitude, scale } from "../format.js";
import { nearLimits, powerTicks } from "../lines_model.js";
import { escapePlotText } from "../plot_text.js";
import { measuredAt, readExponents, words } from "./exponents_model.js";

/** @typedef {import("./exponents_model.js").ExponentsModel} ExponentsModel */
/** @typedef {import("../figure_frame.js").Frame} Frame */
/** @typedef {import("../theme.js").Palette} Palette */

/** Pixels beyond data and limits, for the limits' labels. */
const ROOM = 16;
const PLOT_HEIGHT = 260;
const LABELS = 12;

/** From one element in a million to all, with a tenth in between. Fixed, never stretched to the data. @param {Palette} palette @returns {[number, string][]} */
export const exponentScale = ({ line, accent, ink }) => [[0, line], [5 / 6, accent], [1, ink]];

/** @param {ExponentsModel} model @param {Frame} frame @param {Palette} palette @returns {import("../figure_drawing.js").Drawing} */
export function exponentDrawing(model, frame, palette) {
  const { span, trace } = model;
  const limits = limitsOf(model);
  const ends = [span.low, span.high, ...limits.map(({ at }) => at)];
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const room = ((high - low) * ROOM) / (frame.plotHeight - 2 * ROOM);
  const range = [low - room, high + room];
  const powers = powerTicks({ low: range[0], high: range[1] }, LABELS);
  const yaxis = { range, tickvals: powers, ticktext: powers.map((exponent) => scale(2 ** exponent)), tickfont: { size: 13 }, ticks: "" };
  const traces = trace ? [{ ...trace, colorscale: exponentScale(palette), colorbar: undefined, showscale: false, hoverinfo: "skip", zsmooth: false }] : [];
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
  const found = measuredAt(model, step);
  return found ? `${words(found)}, at step ${count(found.step)}` : "not measured yet";
}

/** @type {import("./lane_specs.js").LaneSpec} */
export const EXPONENTS = {
  name: "exponents",
  title: "Exponents",
  empty: "No histogram was recorded: attach(histograms=True) takes one with every full set.",
  plotHeight: () => PLOT_HEIGHT,
  read: readExponents,
  isEmpty: (/** @type {ExponentsModel} */ model) => !model.measured.length || !model.trace,
  draw: exponentDrawing,
  readout,
};
