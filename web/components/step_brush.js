// A strip of all the run's steps with the shown ones as a window on it, to drag and to move by keys. It has the edges of
// the lanes' plots, so that a step of a lane that shows all of them stands below that step of the strip.

import { el, replace, svg } from "../dom.js";
import { frameOf } from "../figure_frame.js";
import { count, steps } from "../format.js";
import { SCALE_TOP } from "../headroom.js";
import { draggedWindow, gripAt, panned, patchOf, widthOf, windowOf, wholeOf } from "../step_window.js";

/** @typedef {import("../types.js").StepRange} StepRange */
/** @typedef {import("../types.js").Run} Run */
/** @typedef {{grip: import("../step_window.js").Grip, x: number, from: number, window: StepRange}} Drag */

/** A press that moves less is a click. Pixels. */
const STILL = 3;
/** Of the window, for an arrow key. */
const NUDGE = 0.1;
const HEIGHT = 16;

/**
 * @param {import("../types.js").PageContext} ctx
 * @param {(patch: Partial<import("../types.js").ViewState>) => void} change
 * @param {(command: "zoom-in" | "zoom-out") => void} command
 * @param {(width: number) => number | undefined} leftOf pixels before the plots of lanes that are so wide; undefined: the usual ones
 */
export function createStepBrush(ctx, change, command, leftOf) {
  const chart = svg("svg", { class: "brush-chart", preserveAspectRatio: "none", "aria-hidden": "true" });
  const frame = el("div", { class: "brush-window", "aria-hidden": "true" }, el("span", { class: "brush-grip" }), el("span", { class: "brush-grip" }));
  const strip = el("div", { class: "step-brush", role: "slider", tabindex: 0, "aria-label": "Shown steps of the run", "data-testid": "step-brush", pointerdown: press, pointermove: move, pointerup: release, pointercancel: cancel, dblclick: () => change({ start: null, stop: null }), keydown: key }, chart, frame);
  const first = el("span");
  const last = el("span");
  const axis = el("div", { class: "brush-axis" }, strip, el("div", { class: "brush-ends", "aria-hidden": "true" }, first, last));
  const body = el("div", {}, axis);
  const element = el("div", { class: "brush-row", hidden: true }, body);
  new ResizeObserver(align).observe(body); // goes with the element
  /** @type {Run | null} */
  let run = null;
  /** @type {Drag | null} */
  let drag = null;
  /** @type {StepRange | null} where a drag has brought it */
  let dragged = null;

  function align() {
    const width = body.clientWidth;
    const { margin, plotWidth } = frameOf(width, 0, { start: 0, stop: 1 }, leftOf(width));
    axis.style.marginLeft = `${margin.l}px`;
    axis.style.marginRight = `${margin.r}px`;
    axis.style.maxWidth = `${plotWidth}px`; // a width would keep the page as wide as it was when the window becomes narrower
  }

  /** @param {StepRange} window @param {StepRange} whole */
  function draw(window, whole) {
    const share = (/** @type {number} */ n) => `${(100 * n) / widthOf(whole)}%`;
    frame.style.left = share(window.start - whole.start);
    frame.style.width = share(widthOf(window));
    strip.toggleAttribute("data-whole", widthOf(window) >= widthOf(whole));
    strip.setAttribute("aria-valuenow", String(window.start));
    strip.setAttribute("aria-valuetext", `${steps(window)} of ${count(whole.start)} to ${count(whole.stop - 1)}`);
  }

  /** 0 to 1 across the strip; further when the pointer is beside it. @param {PointerEvent} event */
  function placeOf(event) {
    const box = strip.getBoundingClientRect();
    return (event.clientX - box.left) / Math.max(1, box.width);
  }

  /** @param {PointerEvent} event */
  function press(event) {
    if (event.button !== 0 || !run) return;
    const whole = wholeOf(run);
    const window = windowOf(ctx.state, run);
    const from = placeOf(event);
    drag = { grip: gripAt(from * strip.clientWidth, strip.clientWidth, window, whole), x: event.clientX, from, window };
    strip.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  function move(event) {
    if (!run) return;
    const whole = wholeOf(run);
    if (!drag) {
      strip.dataset.grip = gripAt(placeOf(event) * strip.clientWidth, strip.clientWidth, windowOf(ctx.state, run), whole);
      return;
    }
    if (!dragged && Math.abs(event.clientX - drag.x) < STILL) return;
    dragged = draggedWindow(drag.grip, drag.from, placeOf(event), drag.window, whole);
    draw(dragged, whole);
  }

  function release() {
    const made = dragged;
    drag = dragged = null;
    if (made && run) change(patchOf(made, wholeOf(run)));
  }

  function cancel() {
    drag = dragged = null;
    if (run) draw(windowOf(ctx.state, run), wholeOf(run));
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (!run || event.ctrlKey || event.metaKey || event.altKey) return;
    const whole = wholeOf(run);
    const window = windowOf(ctx.state, run);
    const nudge = Math.max(1, Math.round(widthOf(window) * NUDGE));
    const by = { ArrowLeft: -nudge, ArrowDown: -nudge, ArrowRight: nudge, ArrowUp: nudge, Home: -widthOf(whole), End: widthOf(whole) }[event.key];
    if (by !== undefined) change(patchOf(panned(window, whole, by), whole));
    else if (event.key === "+" || event.key === "=") command("zoom-in");
    else if (event.key === "-") command("zoom-out");
    else return;
    event.preventDefault();
  }

  return {
    element,
    /** @param {Run} next */
    update(next) {
      run = next;
      const whole = wholeOf(run);
      element.hidden = run.last_step === null;
      first.textContent = count(whole.start);
      last.textContent = count(whole.stop - 1);
      strip.setAttribute("aria-valuemin", String(whole.start));
      strip.setAttribute("aria-valuemax", String(whole.stop - 1));
      drawChart(chart, run.sparkline);
      if (!drag) draw(windowOf(ctx.state, run), whole);
    },
  };
}

/** Least headroom along the run as steps of a stair, a bar where there was NaN or Inf. @param {SVGElement} chart @param {(number | null)[]} values */
function drawChart(chart, values) {
  const now = JSON.stringify(values);
  if (chart.dataset.shown === now) return;
  chart.dataset.shown = now;
  chart.setAttribute("viewBox", `0 0 ${Math.max(1, values.length)} ${HEIGHT}`);
  const top = (/** @type {number} */ value) => (HEIGHT * (1 - Math.min(value, SCALE_TOP) / SCALE_TOP)).toFixed(2);
  const bars = values.map((value, i) => (value === null || value < 0 ? "" : `M${i} ${HEIGHT}V${top(value)}h1V${HEIGHT}z`)).join("");
  const bad = values.map((value, i) => (value === -1 ? `M${i} 0h1V${HEIGHT}h-1z` : "")).join("");
  replace(chart, svg("path", { class: "brush-bars", d: bars }), svg("path", { class: "brush-bad", d: bad }));
}
