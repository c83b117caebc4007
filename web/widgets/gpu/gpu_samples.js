// The samples of a GPU as series: on the step axis, where each stands at the step that was open, or on the time axis.
// A step that hangs is one column of the step axis, and may be all there is to see: hence the time axis. Pure.

import { isKnown } from "../../format/units.js";

/** @typedef {import("../../types.js").GpuLanes} GpuLanes */
/** @typedef {import("../../types.js").StepRange} StepRange */
/** @typedef {GpuLanes & {origin_ns?: number}} PlacedLanes on the time axis with `origin_ns`, its zero; else on the step axis */
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

/** A value of the card that does not change, as a level line. @param {string} group @param {string} name @returns {(lanes: GpuLanes) => (number | null)[]} */
export const constant = (group, name) => ({ about, times_ns: times }) => {
  const value = about[group]?.[name];
  return times.map(() => (isKnown(value) ? value : null));
};

/** Two columns together, null where either is not known. @param {string} one @param {string} other @returns {(lanes: GpuLanes) => (number | null)[]} */
export const sum = (one, other) => (lanes) => {
  const [a, b] = [column(one)(lanes), column(other)(lanes)];
  return a.map((value, i) => (value === null || b[i] === null ? null : value + Number(b[i])));
};

/** The same samples on the time axis. @param {GpuLanes} lanes @returns {PlacedLanes} */
export const onTime = (lanes) => ({ ...lanes, origin_ns: lanes.times_ns[0] ?? 0 });

/** Where the samples stand. @param {PlacedLanes} lanes */
const placesOf = ({ origin_ns: origin, steps, times_ns: times }) => (origin === undefined ? places(steps) : times.map((time) => (time - origin) / 1e9));

/** Where an event stands. @param {PlacedLanes} lanes @param {{step: number, time_ns: number}} event */
export function placeOfEvent(lanes, { step, time_ns: time }) {
  if (lanes.origin_ns !== undefined) return (time - lanes.origin_ns) / 1e9;
  return step >= 0 ? step : (places(lanes.steps)[0] ?? stepsOf(lanes).start);
}

/** Steps, or seconds, that the samples span. @param {PlacedLanes} lanes @returns {StepRange} */
export function rangeOf(lanes) {
  return lanes.origin_ns === undefined ? stepsOf(lanes) : { start: 0, stop: Math.floor(placesOf(lanes).at(-1) ?? 0) + 1 };
}

/** What a sample stands for on its axis: a step, or the seconds to the next one. @param {PlacedLanes} lanes */
function spacing(lanes) {
  if (lanes.origin_ns === undefined) return 1;
  const x = placesOf(lanes);
  const gaps = x.slice(1).map((at, i) => at - x[i]).sort((a, b) => a - b);
  return Math.max(1, gaps[gaps.length >> 1] ?? 1);
}

/** A step that was open for so long, and for this share of all samples, hangs or is slow: the step axis hides what happened in it. */
const LONG_S = 60;
const LARGE_SHARE = 0.25;

/** Whether the time axis shows more. @param {Pick<GpuLanes, "steps" | "times_ns">} lanes */
export function isLongInOneStep({ steps, times_ns: times }) {
  const last = steps.findLast(isKnown);
  const inside = times.filter((_, i) => steps[i] === last);
  return inside.length >= steps.length * LARGE_SHARE && (inside[inside.length - 1] - inside[0]) / 1e9 >= LONG_S;
}

/** Share of the time in which counters of nanoseconds grew, as a percentage: they are sums since the sample before. @param {...string} columns @returns {(lanes: GpuLanes) => (number | null)[]} */
export const timeShare = (...columns) => ({ values, times_ns: times }) => times.map((time, i) => {
  const elapsed = i + 1 < times.length ? times[i + 1] - time : time - (times[i - 1] ?? time);
  const grown = columns.map((name) => values[name]?.[i]).filter(isKnown);
  return grown.length && elapsed > 0 ? Math.min(100, (100 * grown.reduce((a, b) => a + b, 0)) / elapsed) : null;
});

/** Gaps of so many samples, and seconds, are shown as such: a line across them would look like samples. */
const GAP_SAMPLES = 3;
const GAP_S = 5;

/** @param {PlacedLanes} lanes @param {number[]} x @param {number[]} y */
function withGaps(lanes, x, y) {
  if (lanes.origin_ns === undefined) return { x, y };
  const most = Math.max(GAP_S, GAP_SAMPLES * spacing(lanes));
  const is = (/** @type {number} */ i) => i > 0 && x[i] - x[i - 1] > most;
  return { x: x.flatMap((at, i) => (is(i) ? [at, at] : [at])), y: y.flatMap((value, i) => (is(i) ? [NaN, value] : [value])) };
}

/** A line a source. @param {PlacedLanes} lanes @param {readonly Source[]} sources @returns {import("../../charts/lines.js").LinesModel} */
export function linesOf(lanes, sources) {
  const x = placesOf(lanes);
  const meta = { ...rangeOf(lanes), steps_per_column: spacing(lanes), note: "" };
  return { series: sources.map(({ name, of }) => ({ name, ...withGaps(lanes, x, of(lanes).map((value) => value ?? NaN)) })), markSteps: [], meta };
}

/**
 * When each bit of a column of bits was set.
 * @param {PlacedLanes} lanes
 * @param {string} name of the column
 * @returns {Map<number, {from: number, to: number}[]>} by bit, in steps or seconds; lowest bits first
 */
export function bitBands(lanes, name) {
  const x = placesOf(lanes);
  const bits = lanes.values[name] ?? [];
  const most = spacing(lanes) / 2;
  const width = (/** @type {number} */ i) => Math.min(most, Math.max((x[i + 1] ?? x[i] + 2 * most) - x[i], 0.02) / 2);
  /** @type {Map<number, {from: number, to: number}[]>} */
  const bandsByBit = new Map();
  for (let bit = 1; bit <= 2 ** 31; bit *= 2) {
    for (const [i, value] of bits.entries()) {
      if (!isKnown(value) || Math.floor(value / bit) % 2 === 0) continue;
      const bands = bandsByBit.get(bit) ?? [];
      const last = bands.at(-1);
      if (last && isSet(bits[i - 1], bit)) last.to = x[i] + width(i);
      else bands.push({ from: x[i] - width(i), to: x[i] + width(i) });
      bandsByBit.set(bit, bands);
    }
  }
  return bandsByBit;
}

/** @param {number | null | undefined} value @param {number} bit */
const isSet = (value, bit) => isKnown(value) && Math.floor(value / bit) % 2 === 1;
