// A card's samples on the step axis: each sample stands at the step that was open, several within one step side by side. Pure.

import { isKnown } from "./quantities.js";

/** @typedef {import("./types.js").GpuLanes} GpuLanes */
/** @typedef {import("./types.js").StepRange} StepRange */
/** @typedef {{name: string, of: (lanes: GpuLanes) => (number | null)[]}} Source how a line is read from the samples */

/**
 * Where samples stand: within the width of their step, which is half a step to both sides.
 * @param {readonly (number | null)[]} steps ascending but for restarts; null before the first step
 */
export function places(steps) {
  const known = steps.map((step) => (isKnown(step) && step >= 0 ? step : 0));
  /** @type {number[]} */
  const out = [];
  for (let from = 0, to; from < known.length; from = to) {
    for (to = from + 1; to < known.length && known[to] === known[from]; to += 1);
    const n = to - from;
    for (let i = 0; i < n; i += 1) out.push(known[from] + (n === 1 ? 0 : (i + 0.5) / n - 0.5));
  }
  return out;
}

/** A Unix time in nanoseconds is more than a number here holds: it may be so much off, to either side. */
const OFF_NS = 1024;

/**
 * The times between which the samples of some steps lie, or null where none does: to ask for just these.
 * @param {Pick<GpuLanes, "steps" | "times_ns">} lanes @param {StepRange} range
 */
export function timesOf({ steps, times_ns: times }, { start, stop }) {
  const inside = times.filter((_, i) => isKnown(steps[i]) && steps[i] >= start && steps[i] < stop);
  return inside.length ? { start_ns: Math.max(0, inside[0] - OFF_NS), stop_ns: inside[inside.length - 1] + OFF_NS } : null;
}

/** Steps that the samples span. @param {Pick<GpuLanes, "steps">} lanes @returns {StepRange} */
export function stepsOf({ steps }) {
  const known = steps.filter(isKnown).filter((step) => step >= 0);
  const low = known.reduce((a, b) => Math.min(a, b), Infinity);
  const high = known.reduce((a, b) => Math.max(a, b), 0);
  return { start: Number.isFinite(low) ? low : 0, stop: high + 1 };
}

/** A column, in a unit of so much. @param {string} column @param {number} [unit] @returns {(lanes: GpuLanes) => (number | null)[]} */
export const column = (column, unit = 1) => ({ values, times_ns: times }) => (values[column] ?? times.map(() => null)).map((value) => (isKnown(value) ? value / unit : null));

/** A fact about the card as a level line. @param {string} group @param {string} name @returns {(lanes: GpuLanes) => (number | null)[]} */
export const fact = (group, name) => ({ about, times_ns: times }) => {
  const value = about[group]?.[name];
  return times.map(() => (isKnown(value) ? value : null));
};

/** Two columns together, null where either is not known. @param {string} one @param {string} other @returns {(lanes: GpuLanes) => (number | null)[]} */
export const sum = (one, other) => (lanes) => {
  const [a, b] = [column(one)(lanes), column(other)(lanes)];
  return a.map((value, i) => (value === null || b[i] === null ? null : value + Number(b[i])));
};

/** As the server sends figures, so that lanes need not know the difference. @param {GpuLanes} lanes @param {readonly Source[]} sources @returns {import("./types.js").FigureAnswer} */
export function lineFigure(lanes, sources) {
  const x = places(lanes.steps);
  const meta = { ...stepsOf(lanes), steps_per_column: 1, note: "" };
  return { figure: { data: sources.map(({ name, of }) => ({ name, x, y: of(lanes) })), layout: {} }, meta };
}

/**
 * When each bit of a column of bits was set.
 * @param {GpuLanes} lanes @param {string} name of the column
 * @returns {Map<number, {from: number, to: number}[]>} by bit, in steps; lowest bits first
 */
export function bitBands({ steps, values }, name) {
  const x = places(steps);
  const bits = values[name] ?? [];
  const width = (/** @type {number} */ i) => Math.min(0.5, Math.max((x[i + 1] ?? x[i] + 1) - x[i], 0.02) / 2);
  /** @type {Map<number, {from: number, to: number}[]>} */
  const found = new Map();
  for (let bit = 1; bit <= 2 ** 31; bit *= 2) {
    for (const [i, value] of bits.entries()) {
      if (!isKnown(value) || Math.floor(value / bit) % 2 === 0) continue;
      const bands = found.get(bit) ?? [];
      const last = bands.at(-1);
      if (last && isSet(bits[i - 1], bit)) last.to = x[i] + width(i);
      else bands.push({ from: x[i] - width(i), to: x[i] + width(i) });
      found.set(bit, bands);
    }
  }
  return found;
}

/** @param {number | null | undefined} value @param {number} bit */
const isSet = (value, bit) => isKnown(value) && Math.floor(value / bit) % 2 === 1;
