// Pointer and keys over a figure, told as steps and rows. Plotly keeps the drag; clicks and hovers are ours.

import { rowAt, stepAt } from "../figure_frame.js";

/** @typedef {import("../figure_frame.js").Frame} Frame */
/** @typedef {{step: number, row: number | null, shift: boolean}} Spot */
/**
 * @typedef {object} PointerHandlers
 * @property {() => {frame: Frame, rows: number, stride: number} | null} surface what is drawn now; stride is steps a column
 * @property {(spot: Spot | null) => void} hover
 * @property {(spot: Spot) => void} pick
 * @property {(row: number) => void} pickLabel
 * @property {() => void} released after a press, wherever it ended
 */

/** A press that moves further than this is a drag. Pixels. */
const STILL = 4;
/** A second press within this time makes a double click, which resets the range: Plotly's own default. Milliseconds. */
const DOUBLE_MS = 300;

/** @param {HTMLElement} plot @param {PointerHandlers} handlers */
export function watchPointer(plot, handlers) {
  /** @type {{x: number, y: number} | null} */
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
    if (event.button !== 0) return;
    pressed = { x: event.clientX, y: event.clientY };
    second = event.timeStamp - pressedAt < DOUBLE_MS;
    pressedAt = event.timeStamp;
    clearTimeout(click);
  }

  /** @param {PointerEvent} event */
  function release(event) {
    if (!pressed) return;
    const still = Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) < STILL;
    pressed = null;
    if (still && !second && event.type === "pointerup") clickAt(event);
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
    plot.classList.toggle("on-label", labelOf(event) !== null);
    point(spotOf(event));
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    const surface = handlers.surface();
    if (!surface || event.altKey || event.metaKey || event.ctrlKey) return;
    if (event.key === "Enter" && spot) handlers.pick({ ...spot, shift: event.shiftKey });
    else if (event.key === "Escape") point(null);
    else if (event.key.startsWith("Arrow")) point(moved(spot, event.key, surface));
    else return;
    event.preventDefault();
  }

  plot.addEventListener("pointermove", move);
  plot.addEventListener("pointerleave", () => point(null));
  plot.addEventListener("blur", () => point(null));
  plot.addEventListener("pointerdown", press, true);
  plot.addEventListener("keydown", key);
  window.addEventListener("pointerup", release, true);
  window.addEventListener("pointercancel", release, true);

  return {
    isDown: () => pressed !== null,
    stop() {
      clearTimeout(click);
      window.removeEventListener("pointerup", release, true);
      window.removeEventListener("pointercancel", release, true);
    },
  };
}

/**
 * A spot moved by an arrow key; the first arrow enters at the end.
 * @param {Spot | null} spot @param {string} key @param {{frame: Frame, rows: number, stride: number}} surface
 * @returns {Spot}
 */
export function moved(spot, key, { frame, rows, stride }) {
  const { start, stop } = frame.range;
  const from = spot ?? { step: stop, row: rows ? 0 : null };
  const across = key === "ArrowLeft" ? -stride : key === "ArrowRight" ? stride : 0;
  const down = key === "ArrowUp" ? -1 : key === "ArrowDown" ? 1 : 0;
  const step = Math.round(Math.max(start, Math.min(stop - 1, from.step + across)));
  const row = rows ? Math.max(0, Math.min(rows - 1, (from.row ?? 0) + down)) : null;
  return { step, row, shift: false };
}
