// The statistics that a heatmap can show of a layer: names, values as text, and scale. Pure.

import { bits, magnitude, plural, superscript } from "../format/numbers.js";

/** @typedef {"bits" | "log2" | "fraction" | "count"} ScaleName */
/**
 * As the server tells of it.
 * @typedef {object} Statistic
 * @property {string} name
 * @property {string} title
 * @property {ScaleName} scale
 * @property {"least" | "most"} worst which end of the scale
 * @property {number} low
 * @property {number} high
 */

export const HEADROOM = "headroom_bits";

/** The choices, with what each needs of the run's statistics. @type {readonly {name: string, title: string, help: string, needs: readonly string[]}[]} */
const CHOICES = [
  { name: HEADROOM, title: "Headroom", help: "Bits between the largest magnitude and the largest number of the dtype", needs: ["amax"] },
  { name: "floor_room_bits", title: "Floor room (underflow)", help: "Bits between the smallest magnitude and the smallest normal number of the dtype", needs: ["full_numel", "amin"] },
  { name: "amax", title: "Largest magnitude", help: "The largest finite magnitude", needs: ["amax"] },
  { name: "amin", title: "Smallest magnitude", help: "The smallest finite magnitude that is not zero", needs: ["full_numel", "amin"] },
  { name: "rms", title: "Root mean square", help: "The root of the mean square of the finite elements", needs: ["full_numel", "sum_sq"] },
  { name: "zero_fraction", title: "Zero fraction", help: "The share of elements that are exactly zero", needs: ["full_numel", "zero_count"] },
  { name: "subnormal_fraction", title: "Subnormal fraction", help: "The share of elements below the smallest normal number", needs: ["full_numel", "subnormal_count"] },
  { name: "nonfinite_count", title: "Non-finite elements", help: "How many elements are NaN or Inf", needs: ["nan_count", "inf_count"] },
];

/** Those that a run has the statistics for; all where it does not tell. @param {readonly {name: string}[] | undefined} recorded */
export function choicesOf(recorded) {
  if (!recorded?.length) return CHOICES;
  const names = new Set(recorded.map((one) => one.name));
  return CHOICES.filter((choice) => choice.needs.every((name) => names.has(name)));
}

/** @param {string} name "" is headroom */
export const choiceOf = (name) => CHOICES.find((choice) => choice.name === (name || HEADROOM)) ?? null;

/** @type {Record<string, string>} */
const WORST = {
  floor_room_bits: "least floor room", amax: "largest magnitude", amin: "smallest magnitude", rms: "greatest root mean square",
  zero_fraction: "greatest zero fraction", subnormal_fraction: "greatest subnormal fraction", nonfinite_count: "most non-finite elements",
};

/** What the worst value of it is called. @param {Statistic | null | undefined} statistic null is headroom */
export const worstWords = (statistic) => WORST[statistic?.name ?? ""] ?? "least headroom";

/** A value on the scale, in words: 5.1 bits, 6.27e4, 12.5 %, 3 elements. @param {Statistic | null | undefined} statistic null is headroom @param {number} value */
export function valueText(statistic, value) {
  const scale = statistic?.scale ?? "bits";
  if (!Number.isFinite(value)) return "not measured";
  if (scale === "bits") return bits(value);
  if (scale === "log2") return magnitude(2 ** value);
  if (scale === "count") return plural(Math.round(2 ** value - 1), "element");
  return `${Number((value * 100).toPrecision(3))} %`;
}

/** Places on the scale that get a label. @param {Statistic} statistic @returns {{at: number, text: string}[]} */
export function ticksOf({ scale, low, high }) {
  const places = scale === "fraction" ? [0, 0.25, 0.5, 0.75, 1] : scale === "log2" ? [-24, -14, 0, 8, 16] : [0, 8, 16, 24];
  return places.map((value) => ({ at: (value - low) / (high - low), text: tickText(scale, value) }));
}

/** @param {ScaleName} scale @param {number} value */
function tickText(scale, value) {
  if (scale === "fraction") return `${value * 100} %`;
  if (scale === "count" && value === 0) return "none";
  return `2${superscript(value)}`;
}
