// Which steps are shown: typed, stepped through, dragged on the strip of the run, or the newest; figures write the same place.

import { el, replace } from "../dom.js";
import { count, steps } from "../format.js";
import { keyOf } from "../keys.js";
import { followPatch, isFollowing, panPatch, widthOf, wholeOf, windowOf, zoomPatch } from "../step_window.js";
import { createStepBrush } from "./step_brush.js";

/** @typedef {import("../types.js").ViewState} ViewState */
/** @typedef {import("../types.js").Run} Run */

/** Of the window, for one step aside. */
const PAN = 0.5;
const ZOOM = 2;
/** States of a run from which a new step may come. */
const GROWING = ["live", "stale", "empty"];
/** Changes that come faster than this are one entry of the browser's history. Milliseconds. */
const ONE_CHANGE_MS = 1000;

/**
 * @param {import("../types.js").PageContext} ctx @param {import("../dom.js").Child} hint
 * @param {(width: number) => number | undefined} [leftOf] pixels before the plots of the page's lanes that are so wide, where they are not the usual ones
 */
export function createRangeBar(ctx, hint, leftOf = () => undefined) {
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
  const element = el("div", { class: "range-bar", role: "group", "aria-label": "Shown steps" }, form, moves, shown, help, brush.element);

  /** @param {SubmitEvent} event */
  function apply(event) {
    event.preventDefault();
    const start = from.value === "" ? null : Number(from.value);
    const end = to.value === "" ? null : Number(to.value);
    if (start !== null && end !== null && end < start) return ctx.say("The last step lies before the first.");
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
