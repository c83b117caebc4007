// Pointer and keys over a chart, reported as steps and rows; and the drag that selects a part of the axis.

import { el } from "../../format/dom.js";
import { axisRange, rowAt, stepAt } from "../frame.js";

/** @typedef {import("../frame.js").Frame} Frame */
/** @typedef {{step: number, row: number | null, shift: boolean}} Spot */
/**
 * @typedef {object} PointerHandlers
 * @property {() => {frame: Frame, rows: number, stride: number} | null} surface what is drawn now; stride is steps a column
 * @property {(spot: Spot | null) => void} hover
 * @property {(spot: Spot) => void} pick
 * @property {(row: number) => void} pickLabel
 * @property {(low: number, high: number) => void} zoom to a part of the axis
 * @property {() => void} reset
 * @property {() => void} released after a press, wherever it ended
 */

/** A press that moves further than this is a drag. Pixels. */
const STILL = 4;
/** A second press within this time makes a double click, which resets the range. Milliseconds. */
const DOUBLE_MS = 300;

/** The plot that arrow keys walk: a page that they scroll under a resting pointer ends nothing. @type {HTMLElement | null} */
let walked = null;

/** @param {HTMLElement} plot @param {PointerHandlers} handlers */
export function watchPointer(plot, handlers) {
  const drag = createLaneDrag(plot);
  /** `hasMoved`: it is a drag from then on, wherever it goes. @type {{pointer: number, x: number, y: number, mayDrag: boolean, hasMoved: boolean} | null} */
  let pressed = null;
  let pressedAt = -Infinity;
  let second = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let click;
  /** @type {Spot | null} */
  let spot = null;

  /** @param {MouseEvent} event @returns {Spot | null} */
  function spotOf(event) {
    const surface = handlers.surface();
    if (!surface) return null;
    const box = plot.getBoundingClientRect();
    const step = stepAt(event.clientX - box.left, surface.frame);
    const row = rowAt(event.clientY - box.top, surface.frame, surface.rows);
    return step === null ? null : { step, row, shift: event.shiftKey || event.ctrlKey || event.metaKey };
  }

  /** Between the axes, or in the band of marks above. @param {MouseEvent} event */
  function isInside(event) {
    const frame = handlers.surface()?.frame;
    const y = event.clientY - plot.getBoundingClientRect().top - (frame?.margin.t ?? 0);
    return frame !== undefined && spotOf(event) !== null && y >= 0 && y <= frame.band + frame.plotHeight;
  }

  /** Of the pointer that is pressed: a hand may rest on the screen beside a pen. @param {PointerEvent} event */
  const isMine = (event) => pressed?.pointer === event.pointerId;

  /** @param {MouseEvent} event @returns {number | null} */
  function labelOf(event) {
    const surface = handlers.surface();
    const box = plot.getBoundingClientRect();
    if (!surface || event.clientX - box.left >= surface.frame.margin.l) return null;
    return rowAt(event.clientY - box.top, surface.frame, surface.rows);
  }

  /** @param {Spot | null} next */
  function point(next) {
    spot = next;
    handlers.hover(next);
  }

  /** @param {PointerEvent} event */
  function press(event) {
    if (event.button !== 0 || (pressed && !isMine(event))) return;
    drag.end(); // of a press whose end was not reported
    const mayDrag = event.pointerType !== "touch" && isInside(event); // a finger scrolls the page
    pressed = { pointer: event.pointerId, x: event.clientX, y: event.clientY, mayDrag, hasMoved: false };
    if (mayDrag) plot.setPointerCapture(event.pointerId); // a lane is low: a drag may leave it at once
    second = event.timeStamp - pressedAt < DOUBLE_MS;
    pressedAt = event.timeStamp;
    clearTimeout(click);
  }

  /** @param {PointerEvent} event */
  function release(event) {
    if (!pressed || !isMine(event)) return;
    const still = isStill(event, pressed) && !pressed.hasMoved;
    if (pressed.hasMoved) pressedAt = -Infinity; // a click soon after it is no double click
    const dragged = drag.end();
    pressed = null;
    if (event.type !== "pointerup") return handlers.released();
    if (dragged) handlers.zoom(...dragged);
    else if (still && second && spotOf(event)) handlers.reset();
    else if (still && !second) clickAt(event);
    handlers.released();
  }

  /** @param {PointerEvent} event */
  function dragTo(event) {
    const frame = handlers.surface()?.frame;
    if (!pressed?.mayDrag || !isMine(event) || !frame || (isStill(event, pressed) && !pressed.hasMoved)) return;
    pressed.hasMoved = true;
    drag.move(pressed.x, event.clientX, frame);
  }

  /** Nothing comes of it. */
  function giveUp() {
    if (!pressed) return;
    pressed = null;
    pressedAt = -Infinity;
    drag.end();
    handlers.released();
  }

  /** @param {PointerEvent} event */
  function clickAt(event) {
    const row = labelOf(event);
    const at = spotOf(event);
    if (row !== null) handlers.pickLabel(row);
    else if (at) click = setTimeout(() => handlers.pick(at), DOUBLE_MS);
  }

  /** @param {PointerEvent} event */
  function move(event) {
    walked = null;
    if (pressed && isMine(event) && !(event.buttons & 1)) giveUp(); // it was released where no event reports it, such as in a menu
    dragTo(event);
    const at = spotOf(event);
    if (!pressed?.hasMoved) {
      plot.classList.toggle("on-label", labelOf(event) !== null);
      plot.classList.toggle("on-plot", isInside(event));
    }
    point(at);
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (event.key === "Escape" && pressed) {
      event.stopPropagation(); // it means this drag, and no panel around it
      event.preventDefault();
      return giveUp();
    }
    const surface = handlers.surface();
    if (!surface || event.altKey || event.metaKey || event.ctrlKey) return;
    if (event.key === "Enter" && spot && isOn(spot, surface.frame)) handlers.pick({ ...spot, shift: event.shiftKey });
    else if (event.key === "Escape") end();
    else if (event.key.startsWith("Arrow")) walk(moved(spot, event.key, surface));
    else return;
    event.preventDefault();
  }

  /** @param {Spot} next */
  function walk(next) {
    walked = plot;
    point(next);
  }

  function end() {
    walked = null;
    point(null);
  }

  plot.addEventListener("pointermove", move);
  plot.addEventListener("pointerleave", () => !walked && point(null));
  plot.addEventListener("blur", end);
  plot.addEventListener("pointerdown", press, true);
  plot.addEventListener("keydown", key);
  window.addEventListener("pointerup", release, true);
  window.addEventListener("pointercancel", release, true);

  return {
    element: drag.element,
    isDown: () => pressed !== null,
    giveUp,
    stop() {
      if (walked === plot) walked = null;
      clearTimeout(click);
      window.removeEventListener("pointerup", release, true);
      window.removeEventListener("pointercancel", release, true);
    },
  };
}

/** Whether a step that was pointed at is still among those shown. @param {Pick<Spot, "step">} spot @param {Pick<Frame, "range">} frame */
export const isOn = ({ step }, { range }) => step >= range.start && step < range.stop;

/** @param {PointerEvent} event @param {{x: number, y: number}} from */
const isStill = ({ clientX, clientY }, { x, y }) => Math.hypot(clientX - x, clientY - y) < STILL;

/**
 * A spot moved by an arrow key; the first arrow enters at the end.
 * @param {Spot | null} spot @param {string} key @param {{frame: Frame, rows: number, stride: number}} surface
 * @returns {Spot}
 */
function moved(spot, key, { frame, rows, stride }) {
  const { start, stop } = frame.range;
  const from = spot ?? { step: stop, row: rows ? 0 : null };
  const across = key === "ArrowLeft" ? -stride : key === "ArrowRight" ? stride : 0;
  const down = key === "ArrowUp" ? -1 : key === "ArrowDown" ? 1 : 0;
  const step = Math.round(Math.max(start, Math.min(stop - 1, from.step + across)));
  const row = rows ? Math.max(0, Math.min(rows - 1, (from.row ?? 0) + down)) : null;
  return { step, row, shift: false };
}

// A drag over a plot: the part of the axis between where it began and where the pointer is, shaded.

/** Less is a hand that was not still. Pixels. */
const LEAST = 8;

/** @param {HTMLElement} plot */
function createLaneDrag(plot) {
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
