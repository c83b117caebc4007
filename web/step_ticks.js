// Labels along an axis: round numbers for steps and ranks, and none that the figure's edge would cut. Pure.

import { pixelOf } from "./figure_frame.js";
import { count } from "./format.js";

/** @typedef {import("./figure_frame.js").Frame} Frame */
/** @typedef {{at: number, text: string}} Tick */

/** Pixels between two labels at least, and of a letter at most. */
const SPACING = 75;
const LETTER = 6.8;

/** Round whole numbers. @param {Frame} frame @returns {Tick[]} */
export function stepTicks({ range: { start, stop }, plotWidth }) {
  const every = roundedUp((stop - start) / Math.max(3, Math.floor(plotWidth / SPACING)));
  const first = Math.ceil(start / every) * every;
  const places = Array.from({ length: Math.max(0, Math.ceil((stop - first) / every)) }, (_, i) => first + i * every);
  return places.map((at) => ({ at, text: count(at) }));
}

/**
 * The part of an axis of Plotly's that says where its labels are. Plotly would find out by itself which of them fit, but
 * measures each in the page for that: a layout each, and a quarter of the time that a first view takes to draw.
 * @param {readonly Tick[]} ticks @param {Frame} frame
 */
export function labels(ticks, frame) {
  const fit = ticks.filter((tick) => isInside(tick, frame));
  return { tickvals: fit.map(({ at }) => at), ticktext: fit.map(({ text }) => text), ticklabeloverflow: "allow" };
}

/** The next of 1, 2, 5, 10, 20 and so on. @param {number} least */
function roundedUp(least) {
  const power = 10 ** Math.max(0, Math.floor(Math.log10(least)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= least) ?? power;
}

/** @param {Tick} tick @param {Frame} frame */
function isInside({ at, text }, frame) {
  const half = (text.length * LETTER) / 2;
  const middle = pixelOf(at, frame);
  return middle - half >= 0 && middle + half <= frame.width;
}
