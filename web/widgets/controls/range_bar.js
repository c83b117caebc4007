// The bar that chooses the shown steps: fields, buttons, and a strip of the run's steps with a window to drag.

import { draggedWindow, followPatch, gripAt, isFollowing, panPatch, panned, patchOf, wholeOf, widthOf, windowOf, zoomPatch } from "../../api/url_state.js";
import { frameOf } from "../../charts/frame.js";
import { SCALE_TOP } from "../../charts/statistics.js";
import { el, replace, svg } from "../../format/dom.js";
import { count, steps } from "../../format/numbers.js";
import { keyOf } from "../keyboard_shortcuts.js";

/** @typedef {import("../../types.js").ViewState} ViewState */
/** @typedef {import("../../types.js").Run} Run */

/** Of the window, for one step aside. */
const PAN = 0.5;
const ZOOM = 2;
/** States of a run from which a new step may come. */
const GROWING = ["live", "hung", "empty"];
/** Changes that come faster than this are one entry of the browser's history. Milliseconds. */
const ONE_CHANGE_MS = 1000;

/**
 * @param {import("../../types.js").PageContext} ctx @param {import("../../format/dom.js").Child} hint
 * @param {(width: number) => number | undefined} [leftOf] pixels before the plots of the page's lanes that are so wide, where they are not the usual ones
 * @param {import("../../format/dom.js").Child} [more] controls of the page, beside these
 */
export function createRangeBar(ctx, hint, leftOf = () => undefined, more = null) {
  /** @type {Run | null} */
  let run = null;
  let changedMs = -Infinity;
  /** What the fields were last filled for. */
  let filled = "";

  /** @param {Partial<ViewState>} patch */
  function change(patch) {
    if (!Object.keys(patch).length) return;
    const isSoon = performance.now() - changedMs < ONE_CHANGE_MS;
    changedMs = performance.now();
    ctx.setState(patch, { replace: isSoon });
  }

  /** @type {Record<string, (run: Run) => Partial<ViewState>>} */
  const commands = {
    "pan-earlier": (of) => panPatch(ctx.state, of, -PAN),
    "pan-later": (of) => panPatch(ctx.state, of, PAN),
    "zoom-in": (of) => zoomPatch(ctx.state, of, 1 / ZOOM),
    "zoom-out": (of) => zoomPatch(ctx.state, of, ZOOM),
    "all-steps": () => ({ start: null, stop: null }),
    follow: (of) => followPatch(ctx.state, of),
  };
  /** @param {string} command @param {string} name @param {string} text */
  function button(command, name, text) {
    const press = () => run && !made.hasAttribute("aria-disabled") && change(commands[command](run));
    const made = el("button", { type: "button", class: "quiet", "data-command": command, "aria-label": name === text ? null : name, title: `${name} (key ${keyOf(command)})`, "aria-keyshortcuts": keyOf(command), click: press }, text);
    return made;
  }

  const earlier = button("pan-earlier", "Earlier steps", "◀");
  const later = button("pan-later", "Later steps", "▶");
  const closer = button("zoom-in", "Fewer steps", "+");
  const wider = button("zoom-out", "More steps", "−");
  const all = button("all-steps", "Show all steps", "Show all steps");
  const follow = button("follow", "Follow live", "Follow live");
  const dot = el("span", { class: "range-following", "data-testid": "following", "aria-hidden": "true" }, "● ");
  follow.prepend(dot);
  const shown = el("span", { class: "range-shown" });
  const from = field("First step");
  const to = field("Last step");
  const form = el("form", { class: "range-form", submit: apply }, el("label", {}, "steps ", from), el("label", {}, " to ", to), el("button", { type: "submit", class: "quiet" }, "Go"));
  const help = el("details", { class: "hint" }, el("summary", {}, "How to read and move"), hint);
  const brush = createStepBrush(ctx, change, (command) => (command === "zoom-in" ? closer : wider).click(), leftOf);
  const moves = el("div", { class: "range-moves", role: "group", "aria-label": "Move through the steps" }, earlier, later, closer, wider, all, follow);
  const element = el("div", { class: "range-bar", role: "group", "aria-label": "Shown steps" }, form, moves, shown, more, help, brush.element);

  /** @param {SubmitEvent} event */
  function apply(event) {
    event.preventDefault();
    const start = from.value === "" ? null : Number(from.value);
    const end = to.value === "" ? null : Number(to.value);
    if (start !== null && end !== null && end < start) return ctx.notify("The last step lies before the first.");
    return ctx.setState({ start, stop: end === null ? null : end + 1 });
  }

  /** Only what would change something. @param {Run} of */
  function enable(of) {
    const whole = wholeOf(of);
    const window = windowOf(ctx.state, of);
    const isAll = widthOf(window) >= widthOf(whole);
    dim(earlier, window.start <= whole.start);
    dim(later, window.stop >= whole.stop);
    dim(closer, !Object.keys(commands["zoom-in"](of)).length);
    dim(wider, isAll);
    const { start, stop, last, from } = ctx.state;
    dim(all, start === null && stop === null && last === null && from === null);
    const isOn = isFollowing(ctx.state);
    follow.hidden = !GROWING.includes(of.state);
    follow.setAttribute("aria-pressed", String(isOn));
    dot.hidden = !isOn || of.state !== "live";
    replace(shown, isAll ? "" : `${steps(window)} (${count(widthOf(window))} of ${count(widthOf(whole))})`);
  }

  /** Not while somebody types a range: of two fields one always has no focus. @param {Run} of */
  function fill(of) {
    const { start, stop, last } = ctx.state;
    const asked = JSON.stringify([start, stop, last]);
    if (asked === filled && form.contains(document.activeElement)) return;
    filled = asked;
    put(from, last === null ? start : windowOf(ctx.state, of).start);
    put(to, stop === null ? null : stop - 1);
  }

  return {
    element,
    /** For a page whose lanes are not as wide as it: it belongs right above them. */
    strip: brush.element,
    /** @param {Run} next */
    update(next) {
      run = next;
      enable(next);
      fill(next);
      from.placeholder = String(next.first_step ?? 0);
      to.placeholder = String(next.last_step ?? 0);
      brush.update(next);
    },
  };
}

/** It keeps the focus, which a disabled button would lose. @param {HTMLElement} button @param {boolean} isDim */
function dim(button, isDim) {
  if (isDim) button.setAttribute("aria-disabled", "true");
  else button.removeAttribute("aria-disabled");
}

/** @param {string} name */
const field = (name) => el("input", { type: "number", min: 0, step: 1, "aria-label": name });

/** Never under the reader's fingers. @param {HTMLInputElement} input @param {number | null} value */
function put(input, value) {
  if (document.activeElement !== input) input.value = value === null ? "" : String(value);
}

// A strip of all the run's steps with the shown ones as a window on it, to drag and to move by keys. It has the edges of
// the lanes' plots, so that a step of a lane that shows all of them stands below that step of the strip.

/** @typedef {import("../../types.js").StepRange} StepRange */
/** @typedef {{grip: import("../../api/url_state.js").Grip, x: number, from: number, window: StepRange}} Drag */

/** A press that moves less is a click. Pixels. */
const STILL = 3;
/** Of the window, for an arrow key. */
const NUDGE = 0.1;
const HEIGHT = 16;

/**
 * @param {import("../../types.js").PageContext} ctx
 * @param {(patch: Partial<import("../../types.js").ViewState>) => void} change
 * @param {(command: "zoom-in" | "zoom-out") => void} command
 * @param {(width: number) => number | undefined} leftOf pixels before the plots of lanes that are so wide; undefined: the usual ones
 */
function createStepBrush(ctx, change, command, leftOf) {
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
