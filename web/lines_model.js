// A served line figure, decoded; and the log2 axis. Pure.

import { decode } from "./typed_array.js";

/** @typedef {{name: string, x: ArrayLike<number>, y: ArrayLike<number>, last: number | null}} Series */
/** @typedef {{series: Series[], markSteps: number[], meta: import("./types.js").FigureMeta}} LinesModel */

/** @param {import("./types.js").FigureAnswer} answer @returns {LinesModel} */
export function readLines({ figure, meta }) {
  return { series: figure.data.map(readSeries), markSteps: meta.nonfinite_steps ?? [], meta };
}

/** @param {any} trace @returns {Series} */
function readSeries(trace) {
  const y = decode(trace.y);
  return { name: String(trace.name ?? ""), x: decode(trace.x), y, last: Array.from(y).findLast(Number.isFinite) ?? null };
}

/** Points that have a value, as pairs. @param {Series | undefined} series */
export function points(series) {
  if (!series) return [];
  return Array.from(series.x, (x, i) => ({ x, y: series.y[i] })).filter(({ y }) => Number.isFinite(y));
}

/**
 * The series with a hole wherever steps are missing: a line across steps that were not observed would make them look clean.
 * @param {Series} series @param {number} stepsPerColumn @returns {Series}
 */
export function broken(series, stepsPerColumn) {
  /** @type {number[]} */
  const x = [];
  /** @type {number[]} */
  const y = [];
  for (const [i, at] of Array.from(series.x).entries()) {
    if (i > 0 && at - series.x[i - 1] > 1.5 * stepsPerColumn) {
      x.push(at);
      y.push(NaN);
    }
    x.push(at);
    y.push(series.y[i]);
  }
  return { ...series, x, y };
}

/**
 * The value drawn at a step: that of the nearest point no further off than `reach` steps.
 * @param {Series | undefined} series @param {number} step @param {number} reach
 */
export function valueAt(series, step, reach) {
  if (!series || !series.x.length) return null;
  const right = firstAtLeast(series.x, step);
  const near = right > 0 && Math.abs(series.x[right - 1] - step) <= Math.abs((series.x[right] ?? Infinity) - step) ? right - 1 : right;
  const value = series.y[near];
  return Math.abs(series.x[near] - step) <= reach && Number.isFinite(value) ? value : null;
}

/** The steps merged into the point drawn at a step: columns are aligned to step 0. @param {LinesModel} model @param {number} step @returns {import("./types.js").StepRange} */
export function mergedSteps({ meta }, step) {
  const start = Math.floor(step / meta.steps_per_column) * meta.steps_per_column;
  return { start, stop: start + meta.steps_per_column };
}

/** @param {ArrayLike<number>} sorted @param {number} value */
function firstAtLeast(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * The powers of two that frame some values, or null without a positive one.
 * @param {number[]} values @param {number} [room] octaves beyond the data @returns {{low: number, high: number} | null}
 */
export function octaves(values, room = 1) {
  const powers = values.filter((value) => value > 0 && Number.isFinite(value)).map(Math.log2);
  if (!powers.length) return null;
  const low = powers.reduce((a, b) => Math.min(a, b));
  const high = powers.reduce((a, b) => Math.max(a, b));
  return { low: Math.floor(low) - room, high: Math.ceil(high) + room };
}

/** Whole powers to label, at most `most`. @param {{low: number, high: number}} span @param {number} most */
export function powerTicks({ low, high }, most) {
  const every = [1, 2, 4, 8, 16, 32, 64, 128].find((step) => (high - low) / step <= most) ?? 256;
  const first = Math.ceil(low / every) * every;
  return Array.from({ length: Math.floor((high - first) / every) + 1 }, (_, i) => first + i * every);
}

/** Limits further than this from the data would flatten it to a line. Octaves. */
const LIMIT_REACH = 40;

/** The dtype's limits that are near enough to show. @param {number[]} limits @param {number[]} values */
export function nearLimits(limits, values) {
  const span = octaves(values);
  return limits.filter((limit) => {
    const power = Math.log2(limit);
    return Number.isFinite(power) && (!span || (power > span.low - LIMIT_REACH && power < span.high + LIMIT_REACH));
  });
}

/**
 * "amin is measured every 16 steps" when it is missing in between, else null.
 * @param {Series | undefined} amax @param {Series | undefined} amin @param {number} stepsPerColumn
 */
export function cadenceNote(amax, amin, stepsPerColumn) {
  const measured = points(amin);
  const seen = points(amax).length;
  if (!seen || measured.length >= seen || stepsPerColumn > 1) return null;
  if (!measured.length) return "amin is not measured in these steps.";
  const gaps = measured.slice(1).map(({ x }, i) => x - measured[i].x).sort((a, b) => a - b);
  const every = gaps[gaps.length >> 1];
  const how = every ? `every ${every} steps` : `at ${measured.length} of ${seen} steps`;
  return `amin is measured ${how}, not measured in between.`;
}
