// The shown steps as a window on those of the run: panned, zoomed, dragged, following. Pure.

import { shownRange } from "./url_state.js";

/** @typedef {import("./types.js").StepRange} StepRange */
/** @typedef {import("./types.js").ViewState} ViewState */
/** @typedef {{first_step: number | null, last_step: number | null}} Reach */
/** What a drag moves: an edge, the window, or it makes a new one. @typedef {"start" | "stop" | "pan" | "select"} Grip */

/** A line needs two of them. Steps. */
const LEAST = 2;
/** An edge is taken hold of this far off. Pixels. */
const REACH = 8;

/** @param {Reach} run */
export const wholeOf = (run) => shownRange({ start: null, stop: null }, run);

/** @param {StepRange} range */
export const widthOf = ({ start, stop }) => stop - start;

/** The window that is drawn: what is shown, as far as the run has it. @param {ViewState} state @param {Reach} run @returns {StepRange} */
export function windowOf(state, run) {
  const whole = wholeOf(run);
  const { start, stop } = shownRange(state, run);
  return { start: Math.max(start, whole.start), stop: Math.min(stop, whole.stop) };
}

/** Whether new steps move the right edge. @param {Pick<ViewState, "stop">} state */
export const isFollowing = ({ stop }) => stop === null;

/** The same width elsewhere, no further than the run goes. @param {StepRange} window @param {StepRange} whole @param {number} by steps @returns {StepRange} */
export function panned(window, whole, by) {
  const start = clamp(Math.round(window.start + by), whole.start, whole.stop - widthOf(window));
  return { start, stop: start + widthOf(window) };
}

/** Wider or narrower about its middle. @param {StepRange} window @param {StepRange} whole @param {number} factor under 1 shows fewer steps @returns {StepRange} */
export function zoomed(window, whole, factor) {
  const width = clamp(Math.round(widthOf(window) * factor), Math.min(LEAST, widthOf(whole)), widthOf(whole));
  const start = window.start + Math.round((widthOf(window) - width) / 2);
  return panned({ start, stop: start + width }, whole, 0);
}

/** How the URL says it: all steps need no edges. @param {StepRange} window @param {StepRange} whole @returns {Partial<ViewState>} */
export function patchOf(window, whole) {
  return widthOf(window) >= widthOf(whole) ? { start: null, stop: null } : { start: window.start, stop: window.stop };
}

/** How the URL says that the newest steps are shown. @param {number} width @param {StepRange} whole @returns {Partial<ViewState>} */
const newest = (width, whole) => ({ last: width >= widthOf(whole) ? null : width });

/** @param {ViewState} state @param {Reach} run @param {number} share of the window; negative: earlier @returns {Partial<ViewState>} */
export function panPatch(state, run, share) {
  const whole = wholeOf(run);
  const window = windowOf(state, run);
  const next = panned(window, whole, Math.sign(share) * Math.max(1, Math.round(Math.abs(share) * widthOf(window))));
  return next.start === window.start ? {} : patchOf(next, whole);
}

/** Who follows the newest step goes on doing so. @param {ViewState} state @param {Reach} run @param {number} factor @returns {Partial<ViewState>} */
export function zoomPatch(state, run, factor) {
  const whole = wholeOf(run);
  const window = windowOf(state, run);
  const next = zoomed(window, whole, factor);
  if (widthOf(next) === widthOf(window)) return {};
  return isFollowing(state) ? newest(widthOf(next), whole) : patchOf(next, whole);
}

/** Holds the shown steps fast, or lets them move with the newest one. @param {ViewState} state @param {Reach} run @returns {Partial<ViewState>} */
export function followPatch(state, run) {
  const window = windowOf(state, run);
  return isFollowing(state) ? window : newest(widthOf(window), wholeOf(run));
}

/**
 * What a press takes hold of.
 * @param {number} x @param {number} width both in pixels @param {StepRange} window @param {StepRange} whole @returns {Grip}
 */
export function gripAt(x, width, window, whole) {
  const at = (/** @type {number} */ step) => ((step - whole.start) / widthOf(whole)) * width;
  const [left, right] = [at(window.start), at(window.stop)];
  if (Math.abs(x - left) <= REACH && Math.abs(x - left) <= Math.abs(x - right)) return "start";
  if (Math.abs(x - right) <= REACH) return "stop";
  const isAll = widthOf(window) >= widthOf(whole);
  return x > left && x < right && !isAll ? "pan" : "select";
}

/**
 * The window that a drag makes.
 * @param {Grip} grip @param {number} from @param {number} to places on the strip, 0 to 1 @param {StepRange} window before it @param {StepRange} whole @returns {StepRange}
 */
export function draggedWindow(grip, from, to, window, whole) {
  const moved = Math.round((to - from) * widthOf(whole));
  const least = Math.min(LEAST, widthOf(whole));
  if (grip === "pan") return panned(window, whole, moved);
  if (grip === "start") return { start: clamp(window.start + moved, whole.start, window.stop - least), stop: window.stop };
  if (grip === "stop") return { start: window.start, stop: clamp(window.stop + moved, window.start + least, whole.stop) };
  const [low, high] = [from, to].map((place) => whole.start + clamp(place, 0, 1) * widthOf(whole)).sort((a, b) => a - b);
  const start = clamp(Math.floor(low), whole.start, whole.stop - least);
  return { start, stop: clamp(Math.ceil(high), start + least, whole.stop) };
}

/** @param {number} value @param {number} low @param {number} high */
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
