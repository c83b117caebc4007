// The frame that all lanes share: the same margins, so the same step is at the same pixel everywhere; and its axes, of steps
// or times of the clock, with the labels along them. Pure.

import { count, steps } from "../format/numbers.js";

/** @typedef {import("../types.js").StepRange} StepRange */
/**
 * @typedef {object} Frame Sizes in pixels; the plot is what lies within the margins, under the band of marks.
 * @property {number} width
 * @property {number} height
 * @property {{l: number, r: number, t: number, b: number}} margin
 * @property {number} plotWidth
 * @property {number} plotHeight
 * @property {number} band
 * @property {StepRange} range
 * @property {boolean} isBare whether it has no labels along its steps: another axis, above it, has them
 */

/** Under a plot: for the labels of its axis, or for the lower half of the lowest label at its left. Pixels. */
const FOOT = 22;
const BARE_FOOT = 7;
/** Room above each plot for the marks of non-finite steps. */
const BAND = 10;
/** A phone has no room for whole names. */
const NARROW = 640;

/** Whether names have no room beside a plot. Pixels. @param {number} width */
export const isNarrow = (width) => width < NARROW;

/** Room for names at the left: a share of the width, within bounds. Pixels. @param {number} width */
const nameRoom = (width) => (isNarrow(width) ? 84 : Math.round(Math.min(260, Math.max(172, width * 0.16))));

/**
 * @param {number} width @param {number} plotHeight @param {StepRange} range
 * @param {number} [left] margin of a figure that shares its edges with no other
 * @param {boolean} [isBare] without labels along its steps
 * @returns {Frame}
 */
export function frameOf(width, plotHeight, range, left = nameRoom(width), isBare = false) {
  const margin = { l: left, r: 12, t: isBare ? 0 : 2, b: isBare ? BARE_FOOT : FOOT };
  return {
    width,
    height: plotHeight + BAND + margin.t + margin.b,
    margin,
    plotWidth: Math.max(40, Math.floor(width - margin.l - margin.r)),
    plotHeight,
    band: BAND,
    range,
    isBare,
  };
}

/** The axis: each step is as wide as its cell, so the edges are half a step out. @param {StepRange} range @returns {[number, number]} */
export const axisRange = ({ start, stop }) => [start - 0.5, stop - 0.5];

/** Where a step is drawn, in pixels from the figure's left edge. @param {number} step @param {Frame} frame */
export function pixelOf(step, frame) {
  const [low, high] = axisRange(frame.range);
  return frame.margin.l + ((step - low) / (high - low)) * frame.plotWidth;
}

/** The step under a pixel, or null beside the plot. @param {number} x @param {Frame} frame */
export function stepAt(x, frame) {
  const across = (x - frame.margin.l) / frame.plotWidth;
  if (across < 0 || across > 1) return null;
  const { start, stop } = frame.range;
  return Math.min(stop - 1, start + Math.floor(across * (stop - start)));
}

/** The row under a pixel, or null. @param {number} y @param {Frame} frame @param {number} rows */
export function rowAt(y, frame, rows) {
  const down = (y - frame.margin.t - frame.band) / frame.plotHeight;
  return down < 0 || down >= 1 || rows === 0 ? null : Math.floor(down * rows);
}

/** Whole steps of a dragged axis range, never fewer than two. @param {number} low @param {number} high @returns {StepRange} */
export function draggedRange(low, high) {
  const start = Math.max(0, Math.ceil(Math.min(low, high)));
  return { start, stop: Math.max(start + 2, Math.floor(Math.max(low, high)) + 1) };
}

// The axes.

/**
 * @typedef {object} FigureAxis
 * @property {string} title
 * @property {string} label the title as it stands along an axis: of times with their zone
 * @property {readonly string[]} names columns of a file with a value's place
 * @property {(place: number, per: number) => (string | number)[]} cells their values, for a place where `per` of its units are merged
 * @property {(place: number, per: number) => string} text the same for a reader
 * @property {(range: StepRange) => string} span
 */

/** Merged columns are aligned to step 0. @param {number} place @param {number} per @returns {StepRange} */
function merged(place, per) {
  const start = per > 1 ? Math.floor(place / per) * per : Math.max(0, Math.round(place));
  return { start, stop: start + Math.max(1, per) };
}

/** @type {FigureAxis} */
export const STEPS = {
  title: "step",
  label: "step",
  names: ["first_step", "last_step"],
  cells(place, per) {
    const { start, stop } = merged(place, per);
    return [start, stop - 1];
  },
  text: (place, per) => steps(merged(place, per)),
  span: steps,
};

/** @param {number} originNs Unix time of second 0 @param {boolean} [isDated] whether times are of more than one day @returns {FigureAxis} */
export function clockAxis(originNs, isDated = false) {
  const iso = (/** @type {number} */ second) => new Date(originNs / 1e6 + second * 1e3).toISOString();
  return {
    title: "time",
    label: `time, ${zoneName(0, originNs)}`,
    names: ["time_utc"],
    cells: (second) => [iso(second)],
    text: (second) => `${clockText(second, originNs, 1, isDated)} ${zoneName(second, originNs)}`,
    span({ start, stop }) {
      const isOver = isOverMidnight({ start, stop }, originNs);
      return `${clockText(start, originNs, 1, isOver)} to ${clockText(stop - 1, originNs, 1, isOver)} ${zoneName(stop - 1, originNs)}`;
    },
  };
}

// Labels along an axis: round numbers for steps and ranks, and none that the figure's edge would cut.

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

/** Those labels of steps that the figure's edge does not cut. @param {Frame} frame */
export const stepLabels = (frame) => stepTicks(frame).filter((tick) => isInside(tick, frame));

/**
 * The part of an axis of Plotly's that sets where its labels are. Plotly would find out by itself which of them fit, but
 * measures each in the page for that: a layout each, and a quarter of the time that a first view takes to draw.
 * @param {readonly Tick[]} ticks @param {Frame} frame
 */
export function labels(ticks, frame) {
  const fit = ticks.filter((tick) => isInside(tick, frame));
  return { tickvals: fit.map(({ at }) => at), ticktext: fit.map(({ text }) => text), ticklabeloverflow: "allow" };
}

/**
 * Row numbers that get a label: evenly spread, none closer than `spacing` pixels.
 * @param {number} rows @param {number} height @param {number} spacing
 */
export function labelledRows(rows, height, spacing) {
  const every = Math.max(1, Math.ceil((rows * spacing) / Math.max(1, height)));
  return Array.from({ length: Math.ceil(rows / every) }, (_, i) => i * every);
}

/** With one row more, in place of those that its label would cover. @param {readonly number[]} labelled @param {number | null} row @param {number} apart rows from one label to the next at least */
export function withRow(labelled, row, apart) {
  if (row === null || labelled.includes(row)) return [...labelled];
  return [...labelled.filter((one) => Math.abs(one - row) >= apart), row].sort((a, b) => a - b);
}

/**
 * Marks for the band above a plot, none closer than `gap` steps to the one before: thousands would only smear.
 * @param {ArrayLike<number>} sorted steps @param {number} gap
 */
export function thinned(sorted, gap) {
  /** @type {number[]} */
  const marks = [];
  for (const step of Array.from(sorted)) {
    if (!marks.length || step - marks[marks.length - 1] >= gap) marks.push(step);
  }
  return marks;
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

// The labels of a time axis: the clock's own round times, in the reader's time zone.

/** Seconds between two labels. */
const EVERY_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
/** Seconds from where on the day is shown, and not the second. */
const DAY_S = 86400;

/**
 * @param {import("../types.js").StepRange} range seconds @param {number} origin_ns Unix time of second 0 @param {number} most labels
 * @returns {{at: number, text: string}[]}
 */
export function clockTicks({ start, stop }, origin_ns, most) {
  const span = stop - start;
  const every = EVERY_S.find((one) => span / one <= most) ?? DAY_S * Math.ceil(span / most / DAY_S);
  const origin = origin_ns / 1e9 - new Date(origin_ns / 1e6).getTimezoneOffset() * 60;
  const first = Math.ceil((origin + start) / every) * every - origin;
  const at = Array.from({ length: Math.max(0, Math.floor((stop - first) / every) + 1) }, (_, i) => first + i * every);
  const isOver = isOverMidnight({ start, stop }, origin_ns);
  const isFirstOfDay = (/** @type {number} */ i) => i === 0 || dayText(at[i], origin_ns) !== dayText(at[i - 1], origin_ns);
  return at.map((second, i) => ({ at: second, text: clockText(second, origin_ns, every, isOver && isFirstOfDay(i)) }));
}

/** @param {number} second @param {number} origin_ns @param {number} [every] seconds that need not be distinguished @param {boolean} [isDated] with the day before it */
export function clockText(second, origin_ns, every = 1, isDated = false) {
  const day = dayText(second, origin_ns);
  if (every >= DAY_S) return day;
  const time = dateOf(second, origin_ns).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(every < 60 ? { second: "2-digit" } : {}) });
  return isDated ? `${day} ${time}` : time;
}

/** Whether times of the clock alone would leave open of which day they are. @param {import("../types.js").StepRange} range seconds @param {number} origin_ns */
export const isOverMidnight = ({ start, stop }, origin_ns) => dayText(start, origin_ns) !== dayText(stop, origin_ns);

/** The short name of the reader's time zone, as it is at that time: in summer it may be another. @param {number} second @param {number} origin_ns */
export function zoneName(second, origin_ns) {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(dateOf(second, origin_ns));
  return parts.find(({ type }) => type === "timeZoneName")?.value ?? "";
}

/** @param {number} second @param {number} origin_ns */
const dateOf = (second, origin_ns) => new Date(origin_ns / 1e6 + second * 1e3);

/** @param {number} second @param {number} origin_ns */
const dayText = (second, origin_ns) => dateOf(second, origin_ns).toLocaleDateString("en-GB", { day: "2-digit", month: "short" });
