// What the cells of a heatmap hold: a statistic, as text and on its scale, or a state in place of a value. Pure.

import { bits, magnitude, plural, superscript } from "../format/numbers.js";

/** @typedef {"bits" | "log2" | "fraction" | "count" | "change" | "ratio" | "load" | "room"} ScaleName */
/**
 * As the server sends it.
 * @typedef {object} Statistic
 * @property {string} name
 * @property {string} title
 * @property {ScaleName} scale
 * @property {"least" | "most" | "furthest"} worst which end of the scale, or what is furthest from 0
 * @property {string} worst_title
 * @property {boolean} is_full_set whether it is measured at some steps only
 * @property {number} low
 * @property {number} high
 */

export const HEADROOM = "headroom_bits";

/** What heatmaps of layers show where the reader has chosen nothing: the server says it, from the data. @param {{default_statistic?: string}} run */
export const defaultOf = (run) => run.default_statistic ?? HEADROOM;

/** One of a run's choices; "" is its default. @param {{derived?: readonly import("../types.js").StatisticChoice[], default_statistic?: string}} run @param {string} name */
export const choiceOf = (run, name) => run.derived?.find((choice) => choice.name === (name || defaultOf(run))) ?? null;

/** Greater is worse. @param {Statistic | {worst: Statistic["worst"]} | null | undefined} statistic null is headroom @param {number} value on its scale */
export function badnessOf(statistic, value) {
  if (statistic?.worst === "furthest") return Math.abs(value);
  return statistic?.worst === "most" ? value : -value;
}

/** What the worst value of it is called. @param {Statistic | null | undefined} statistic null is headroom */
export const worstTitle = (statistic) => statistic?.worst_title ?? "least headroom";

/** A value on the scale, as text: 5.1 bits, 6.27e4, 12.5 %, 3 elements. @param {Statistic | null | undefined} statistic null is headroom @param {number} value */
export function valueText(statistic, value) {
  const scale = statistic?.scale ?? "bits";
  if (!Number.isFinite(value)) return "not measured";
  if (scale === "bits") return bits(value);
  if (scale === "change") return `${value < 0 ? "−" : "+"}${bits(Math.abs(value))}`;
  if (scale === "load") return loadText(2 ** value);
  if (scale === "room") return value < 0 ? `${bits(-value)} beyond the limit` : `${bits(value)} free`;
  if (scale === "log2" || scale === "ratio") return magnitude(2 ** value);
  if (scale === "count") return plural(Math.round(2 ** value - 1), "element");
  return `${Number((value * 100).toPrecision(3))} %`;
}

/** log2 of a load that stands for none. */
const NO_TOKENS = -16;

/** Tokens of an expert over the mean of all. @param {number} ratio */
export function loadText(ratio) {
  if (ratio <= 2 ** NO_TOKENS) return "no tokens";
  return `${Number(ratio.toPrecision(2))} × the mean`;
}

/** Places on the scale that get a label. @param {Statistic} statistic @returns {{at: number, text: string}[]} */
export function ticksOf({ scale, low, high }) {
  if (scale === "change") return [-8, -4, 0, 4, 8].map((value) => ({ at: (value - low) / (high - low), text: changeTick(value) }));
  if (scale === "room") return [-8, -4, 0, 4, 8].map((value) => ({ at: (value - low) / (high - low), text: roomTick(value) }));
  if (scale === "load") return [-4, -2, 0, 2, 4].map((value) => ({ at: (value - low) / (high - low), text: loadTick(value) }));
  if (scale === "ratio") return [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1].map((value) => ({ at: (Math.log2(value) - low) / (high - low), text: value < 0.01 ? value.toExponential() : String(value) }));
  const places = scale === "fraction" ? [0, 0.25, 0.5, 0.75, 1] : scale === "log2" ? [-24, -14, 0, 8, 16] : [0, 8, 16, 24];
  return places.map((value) => ({ at: (value - low) / (high - low), text: tickText(scale, value) }));
}

/** @param {number} value bits */
const changeTick = (value) => (value === 0 ? "usual" : `${value < 0 ? "−" : "+"}${Math.abs(value)}${Math.abs(value) === 8 ? " bits" : ""}`);

/** @param {number} value bits */
const roomTick = (value) => (value === 0 ? "the limit" : value < 0 ? `${-value} beyond` : value === 8 ? "8 bits free" : String(value));

/** @param {number} value log2 */
const loadTick = (value) => (value === 0 ? "mean" : value < 0 ? `1/${2 ** -value}` : `${2 ** value} ×`);

/** @param {ScaleName} scale @param {number} value */
function tickText(scale, value) {
  if (scale === "fraction") return `${value * 100} %`;
  if (scale === "count" && value === 0) return "none";
  return `2${superscript(value)}`;
}

// The headroom scale, and the states of a cell: codes, texts and order of badness.

export const STATE = Object.freeze({ value: 0, saturated: 1, inf: 2, nan: 3, zero: 4, notObserved: 5, stale: 6, scaleStale: 7, scaleTooSmall: 8 });

/** Labels by code, and what a reader should know of each. */
export const STATE_LABELS = Object.freeze([
  { name: "value", label: "value", help: "finite, at least 1 bit of headroom" },
  { name: "saturated", label: "saturated", help: "under 1 bit of headroom" },
  { name: "inf", label: "Inf", help: "at least one Inf, no NaN" },
  { name: "nan", label: "NaN", help: "at least one NaN" },
  { name: "zero", label: "all zero", help: "every element was zero" },
  { name: "not_observed", label: "not observed", help: "the hooks did not fire, or nothing arrived" },
  { name: "stale", label: "stale", help: "this rank went silent while others went on" },
  { name: "scale_stale", label: "scale stale", help: "made of an old entry of the amax history, 4 bits or more above the newest beside its margin" },
  { name: "scale_too_small", label: "scale too small", help: "the largest values are a third or more beyond the limit of the format, and saturate" },
]);

/** Bits at the scale's colours. Fixed, never stretched to the data: two runs compare by eye. */
export const SCALE_BITS = Object.freeze([0, 1, 2, 4, 6.4, 9.6, 16]);
export const SCALE_TOP = 16;

/** Worst last; the order in which states are painted, so that the worst lies on top. */
export const PAINT_ORDER = Object.freeze([STATE.stale, STATE.notObserved, STATE.zero, STATE.saturated, STATE.scaleStale, STATE.scaleTooSmall, STATE.inf, STATE.nan]);

/** @param {number} state */
export const isNonfinite = (state) => state === STATE.inf || state === STATE.nan;

/** Whether the scale of an operand in low precision is in a state of its own; the value is there beside it. @param {number} state */
export const isScale = (state) => state === STATE.scaleStale || state === STATE.scaleTooSmall;

/** @param {string} name */
export function stateLabel(name) {
  return STATE_LABELS.find((state) => state.name === name)?.label ?? name;
}

/** Which colour of the scale a number of bits is nearest to from below, 0 to 6. @param {number | null} bits */
export function heatOf(bits) {
  if (bits === null) return null;
  const above = SCALE_BITS.findIndex((at) => bits < at);
  return above < 0 ? SCALE_BITS.length - 1 : Math.max(0, above - 1);
}
