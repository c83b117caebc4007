// A drag over a plot: the part of the axis between where it began and where the pointer is, shaded.

import { el } from "../dom.js";
import { axisRange } from "../figure_frame.js";

/** @typedef {import("../figure_frame.js").Frame} Frame */

/** Less is a hand that was not still. Pixels. */
const LEAST = 8;

/** @param {HTMLElement} plot */
export function createLaneDrag(plot) {
  const element = el("div", { class: "lane-drag", "aria-hidden": "true", hidden: true });
  /** Shares of the plot's width, in the frame that it is of. @type {{from: number, to: number, frame: Frame} | null} */
  let drag = null;

  /** @param {number} clientX @param {Frame} frame */
  function shareAt(clientX, { margin, plotWidth }) {
    const x = clientX - plot.getBoundingClientRect().left - margin.l;
    return Math.max(0, Math.min(1, x / plotWidth));
  }

  /** @param {number} fromX @param {number} toX of the screen @param {Frame} frame */
  function move(fromX, toX, frame) {
    drag = { from: shareAt(fromX, frame), to: shareAt(toX, frame), frame };
    const { margin, band, plotWidth, plotHeight } = frame;
    const [left, right] = [drag.from, drag.to].sort((a, b) => a - b).map((share) => margin.l + share * plotWidth);
    Object.assign(element.style, { left: `${left}px`, width: `${right - left}px`, top: `${margin.t}px`, height: `${band + plotHeight}px` });
    element.hidden = false;
  }

  /** Places of the axis where it began and ended; null of none, or hardly any. @returns {[number, number] | null} */
  function end() {
    const made = drag;
    drag = null;
    element.hidden = true;
    return made && draggedAxis(made.from, made.to, made.frame);
  }

  return { element, move, end };
}

/** @param {number} from @param {number} to shares of the plot's width @param {Pick<Frame, "plotWidth" | "range">} frame @returns {[number, number] | null} */
export function draggedAxis(from, to, { plotWidth, range }) {
  if (Math.abs(to - from) * plotWidth < LEAST) return null;
  const [low, high] = axisRange(range);
  return [low + from * (high - low), low + to * (high - low)];
}
