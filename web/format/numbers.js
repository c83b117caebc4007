// Numbers, units and names as text. Pure.

const MISSING = "not measured";

/** 5.1 bits. @param {number | null} value */
export function bits(value) {
  return isNumber(value) ? `${value.toFixed(value !== 0 && Math.abs(value) < 1 ? 2 : 1)} bits` : MISSING;
}

/** A magnitude as 6.27e4. @param {number | null | undefined} value */
export function magnitude(value) {
  if (!isNumber(value)) return MISSING;
  return value === 0 ? "0" : value.toExponential(2).replace("e+", "e");
}

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** 2¹⁶ where it is a power of two; as characters, so that it reads the same in a figure, a table and a copy. @param {number | null | undefined} value */
export function scale(value) {
  if (!isNumber(value)) return "none";
  const power = Math.log2(value);
  return Number.isInteger(power) ? `2${superscript(power)}` : magnitude(value);
}

/** @param {number} power */
export const superscript = (power) => String(power).replace("-", "⁻").replace(/\d/g, (digit) => SUPERSCRIPTS[Number(digit)]);

/** A plain reading such as a loss: four digits that matter. @param {number | null | undefined} value */
export function reading(value) {
  if (!isNumber(value)) return MISSING;
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return magnitude(value);
  return String(Number(value.toPrecision(4)));
}

/** 12,345. @param {number | null | undefined} value */
export function count(value) {
  if (!isNumber(value)) return MISSING;
  // The first use of toLocaleString takes 20 ms.
  return Number.isSafeInteger(value) ? String(value).replace(/\B(?=(\d{3})+$)/g, ",") : value.toLocaleString("en-US");
}

/** @param {number} n @param {string} noun @param {string} [many] */
export function plural(n, noun, many = `${noun}s`) {
  return `${count(n)} ${n === 1 ? noun : many}`;
}

/** Seconds in the unit that reads best. @param {number | null | undefined} seconds */
export function seconds(seconds) {
  if (!isNumber(seconds)) return MISSING;
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} us`;
  if (seconds < 1) return `${trim(seconds * 1e3)} ms`;
  return `${trim(seconds)} s`;
}

/** Whole units, as a person writes it: 40 s, 14 min, 3 h, 2 d. @param {number} nanoseconds */
export function duration(nanoseconds) {
  const s = Math.max(0, Math.floor(nanoseconds / 1e9));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

/** @param {number} nanoseconds */
export const age = (nanoseconds) => `${duration(nanoseconds)} ago`;

/** rank 5, or all ranks. @param {number | "all" | null} rank */
export function rankName(rank) {
  return rank === "all" || rank === null ? "all ranks" : `rank ${rank}`;
}

/** "rank 3", "ranks 1, 3 and 7-9". @param {readonly number[]} ranks */
export function rankList(ranks) {
  const spans = joinSpans([...ranks].sort((a, b) => a - b));
  const text = spans.length < 2 ? spans.join("") : `${spans.slice(0, -1).join(", ")} and ${spans.at(-1)}`;
  return `${ranks.length === 1 ? "rank" : "ranks"} ${text}`;
}

/** @param {readonly number[]} sorted @returns {string[]} */
function joinSpans(sorted) {
  /** @type {[number, number][]} */
  const spans = [];
  for (const rank of sorted) {
    const last = spans.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else spans.push([rank, rank]);
  }
  return spans.flatMap(([a, b]) => (a === b ? [`${a}`] : b === a + 1 ? [`${a}`, `${b}`] : [`${a}-${b}`]));
}

/** step 360, or steps 64-127. @param {import("../types.js").StepRange} range */
export function steps({ start, stop }) {
  return stop - start === 1 ? `step ${count(start)}` : `steps ${count(start)}-${count(stop - 1)}`;
}

/** @param {readonly number[]} shape */
export const shape = (shape) => (shape.length ? shape.join(" x ") : "scalar");

/** As a sentence or a heading begins. @param {string} text */
export const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

/**
 * The end of a dotted name identifies it best, and numbers distinguish names: other parts give way to their first letters, from the
 * start on, and what is too long then to an ellipsis. @param {string} text @param {number} length
 */
export function shorten(text, length) {
  const parts = text.split(".");
  for (let at = 0; at < parts.length - 1 && parts.join(".").length > length; at += 1) parts[at] = initial(parts[at]);
  const short = parts.join(".");
  return short.length <= length ? short : `…${short.slice(short.length - length + 1)}`;
}

/** d of decoder, n12 of node12. @param {string} part */
const initial = (part) => part.replace(/^(\D)\D*(\d*)$/u, "$1$2");

/** A name of any length as one that leaves room for the rest of the page; both its ends identify it. @param {string} text @param {number} [length] */
export function clip(text, length = 160) {
  const half = Math.floor(length / 2);
  return text.length <= length ? text : `${text.slice(0, half)} … ${text.slice(-half)}`;
}

/** @param {number} value */
const trim = (value) => String(Number(value.toPrecision(3)));

/** @param {unknown} value @returns {value is number} */
function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}
