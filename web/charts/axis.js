// The axes of charts: steps or times of the clock, and the labels along them. Pure.

import { count, steps } from "../format/numbers.js";
import { pixelOf } from "./frame.js";

/** @typedef {import("../types.js").StepRange} StepRange */
/**
 * @typedef {object} FigureAxis
 * @property {string} title
 * @property {string} label the title as it stands along an axis: of times with their zone
 * @property {readonly string[]} names columns of a file that say where a value stands
 * @property {boolean} isText whether those hold text
 * @property {(place: number, per: number) => (string | number)[]} cells their values, for a place where `per` of its units are merged
 * @property {(place: number, per: number) => string} say the same to a reader
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
  isText: false,
  cells(place, per) {
    const { start, stop } = merged(place, per);
    return [start, stop - 1];
  },
  say: (place, per) => steps(merged(place, per)),
  span: steps,
};

/** @param {number} originNs Unix time of second 0 @param {boolean} [isDated] whether times are of more than one day @returns {FigureAxis} */
export function clockAxis(originNs, isDated = false) {
  const iso = (/** @type {number} */ second) => new Date(originNs / 1e6 + second * 1e3).toISOString();
  return {
    title: "time",
    label: `time, ${zoneName(0, originNs)}`,
    names: ["time_utc"],
    isText: true,
    cells: (second) => [iso(second)],
    say: (second) => `${clockText(second, originNs, 1, isDated)} ${zoneName(second, originNs)}`,
    span({ start, stop }) {
      const isOver = isOverMidnight({ start, stop }, originNs);
      return `${clockText(start, originNs, 1, isOver)} to ${clockText(stop - 1, originNs, 1, isOver)} ${zoneName(stop - 1, originNs)}`;
    },
  };
}

// Labels along an axis: round numbers for steps and ranks, and none that the figure's edge would cut.

/** @typedef {import("./frame.js").Frame} Frame */
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

// The labels of a time axis: the clock's own round times, in the reader's time zone.

/** Seconds between two labels. */
const EVERY_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
/** Seconds from where on the day is told, and not the second. */
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

/** @param {number} second @param {number} origin_ns @param {number} [every] seconds that need not be told apart @param {boolean} [isDated] with the day before it */
export function clockText(second, origin_ns, every = 1, isDated = false) {
  const day = dayText(second, origin_ns);
  if (every >= DAY_S) return day;
  const time = dateOf(second, origin_ns).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(every < 60 ? { second: "2-digit" } : {}) });
  return isDated ? `${day} ${time}` : time;
}

/** Whether times of the clock alone would not say of which day they are. @param {import("../types.js").StepRange} range seconds @param {number} origin_ns */
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
