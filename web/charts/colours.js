// The colours of heatmaps: the fixed scales by name, what a legend shows of them, and the colour of a value. Pure.
// Written once, for both themes, as CSS; `palette()` of theme.js has them as the browser resolves them.

import { SCALE_BITS, SCALE_TOP } from "./statistics.js";

/** From a place on the scale, 0 to 1, to a colour; between two places colours are mixed. @typedef {readonly (readonly [number, string])[]} ColourScale */

/** Least headroom first. The last is a variable of style.css, since figures without cells show what is calm in it, too. */
const HEADROOM = [
  "light-dark(#7a0403, #ffe3c2)",
  "light-dark(#c22403, #ffb35c)",
  "light-dark(#f66b19, #f4791f)",
  "light-dark(#fdb863, #b5480f)",
  "light-dark(#f3e2c0, #5a3420)",
  "light-dark(#d9e6ee, #2a3641)",
  "var(--calm)",
];

/** Magnitudes and shares: from pale to deep in one hue, distinguished by lightness alone. */
const MAGNITUDE = [
  "light-dark(#eef2f4, #1f272d)",
  "light-dark(#c9dde6, #24414f)",
  "light-dark(#93bfd1, #2a5f76)",
  "light-dark(#5a97b5, #3b809c)",
  "light-dark(#3a6d98, #62a3bb)",
  "light-dark(#2f4776, #9cc8d8)",
  "light-dark(#231d4f, #e6f4f8)",
];

/** @param {readonly string[]} colours @returns {ColourScale} */
const evenly = (colours) => colours.map((colour, i) => [i / (colours.length - 1), colour]);

/** By what the cells hold; of states without a value `cells/patterns.js` has the patterns, in colours of style.css. */
export const SCALES = Object.freeze({
  /** Bits of headroom or floor room, from none to `SCALE_TOP`. */
  headroom: /** @type {ColourScale} */ (SCALE_BITS.map((bits, i) => [bits / SCALE_TOP, HEADROOM[i]])),
  /** What is worse the more there is of it: waits, slowness. */
  cost: evenly([...HEADROOM].reverse()),
  /** Any other statistic. */
  magnitude: evenly(MAGNITUDE),
  /** Bits less or more than on another side. */
  difference: /** @type {ColourScale} */ ([[0, HEADROOM[1]], [0.25, HEADROOM[3]], [0.5, "var(--line)"], [0.75, "light-dark(#77a4c8, #4c749c)"], [1, "var(--accent)"]]),
  /** Bits above (warm) and below (blue) what is usual, which is calm: told apart with any colour vision. */
  change: /** @type {ColourScale} */ ([
    [0, "light-dark(#123d7a, #b9dcff)"], [0.25, "light-dark(#4a86c5, #5c9fdd)"], [0.42, "light-dark(#cfdfee, #2b4258)"], [0.5, "light-dark(#eff1f2, #23292e)"],
    [0.58, "light-dark(#f6e2c4, #4a3620)"], [0.75, "light-dark(#e58a2c, #d9822b)"], [1, "light-dark(#7a2a04, #ffdcae)"],
  ]),
  /** Share of the elements, in decades: from one in a million to all, with a tenth in between. */
  share: /** @type {ColourScale} */ ([[0, "var(--line)"], [5 / 6, "var(--accent)"], [1, "var(--ink)"]]),
});

/** As the background of a legend's bar. @param {ColourScale} scale */
export const gradient = (scale) => `linear-gradient(to right, ${scale.map(([at, colour]) => `${colour} ${100 * at}%`).join(", ")})`;

/** @typedef {{low: number, high: number, colours: ColourScale}} CellColours values at and below `low` have the first colour, those from `high` on the last */

/** How the values of a heatmap are coloured. Fixed, never stretched to the data: two runs compare by eye. @param {import("./statistics.js").Statistic | null | undefined} statistic null is headroom @param {import("./theme.js").Palette} palette @returns {CellColours} */
export function statisticColours(statistic, { scales }) {
  if (!statistic || statistic.scale === "bits") return { low: 0, high: SCALE_TOP, colours: scales.headroom };
  return { low: statistic.low, high: statistic.high, colours: scales[scaleOf(statistic)] };
}

/** @param {import("./statistics.js").Statistic} statistic that is not in bits of headroom */
export const scaleOf = ({ scale }) => (scale === "change" || scale === "load" ? "change" : scale === "room" ? "difference" : "magnitude");

/** @param {string} colour "rgb(1, 2, 3)", as the browser resolves it @returns {number[]} */
export const channels = (colour) => (colour.match(/[\d.]+/g) ?? ["0", "0", "0"]).slice(0, 3).map(Number);

/** More than a screen distinguishes. */
const SHADES = 1024;

/** Of a scale `SHADES` equal parts: red, green, blue and opaque. @type {WeakMap<ColourScale, Uint8ClampedArray>} */
const made = new WeakMap();

/** @param {ColourScale} scale of resolved colours */
function shadesOf(scale) {
  const known = made.get(scale);
  if (known) return known;
  const shades = new Uint8ClampedArray(4 * SHADES);
  const stops = scale.map(([at, colour]) => ({ at, parts: channels(colour) }));
  for (let i = 0, below = 0; i < SHADES; i += 1) {
    const at = i / (SHADES - 1);
    while (below < stops.length - 2 && at > stops[below + 1].at) below += 1;
    const [from, to] = [stops[below], stops[below + 1]];
    const part = (at - from.at) / (to.at - from.at);
    shades.set([...from.parts.map((channel, c) => channel + (to.parts[c] - channel) * part), 255], 4 * i);
  }
  made.set(scale, shades);
  return shades;
}

/** The colour at a place of a scale, 0 to 1. @param {ColourScale} scale of resolved colours @param {number} at */
export function colourAt(scale, at) {
  const first = 4 * Math.round(at * (SHADES - 1));
  return `rgb(${shadesOf(scale).slice(first, first + 3).join(" ")})`;
}

/** A pixel a value: red, green, blue, opaque; transparent where there is none. @param {{z: ArrayLike<number>} & CellColours} cells */
export function cellPixels({ z, low, high, colours }) {
  const pixels = new Uint32Array(z.length);
  const shades = new Uint32Array(shadesOf(colours).buffer);
  const scale = (SHADES - 1) / (high - low);
  for (let i = 0; i < z.length; i += 1) {
    if (Number.isFinite(z[i])) pixels[i] = shades[Math.max(0, Math.min(SHADES - 1, Math.round((z[i] - low) * scale)))];
  }
  return new Uint8ClampedArray(pixels.buffer);
}

// What costs time, on a logarithmic scale.

/**
 * @typedef {object} CostScale
 * @property {number} low at and below it all is calm
 * @property {number} high at and above it is as hot as it gets
 * @property {readonly number[]} ticks
 * @property {(value: number) => string} text
 */

/** Where a cost lies, 0 calm to 1 hot. @param {number} value @param {Pick<CostScale, "low" | "high">} scale */
export function costShare(value, { low, high }) {
  if (!(value > low)) return 0;
  return Math.min(1, Math.log(value / low) / Math.log(high / low));
}
