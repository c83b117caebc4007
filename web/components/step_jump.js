// Which step is shown: typed, or one further.

import { el, replace } from "../dom.js";
import { count } from "../format.js";

/** @param {import("../types.js").PageContext} ctx */
export function createStepJump(ctx) {
  const input = el("input", { type: "number", min: 0, name: "step", "aria-label": "Step" });
  const jumps = el("div", { class: "jumps" });
  const newest = el("button", { type: "button", class: "quiet", click: () => ctx.setState({ step: null }) }, "Newest step");
  const form = el("form", { class: "inline-form", submit: go }, el("label", { class: "field" }, "Step ", input), el("button", { type: "submit", class: "quiet" }, "Go"));

  /** @param {SubmitEvent} event */
  function go(event) {
    event.preventDefault();
    if (input.value !== "") ctx.setState({ step: Number(input.value) });
  }

  /** @param {string} text @param {number} step @param {boolean} isThere */
  const jump = (text, step, isThere) => el("button", { type: "button", class: "quiet", "data-key": text, disabled: !isThere, click: () => ctx.setState({ step }) }, text);

  return {
    element: el("div", { class: "filters" }, form, jumps, newest),
    /** @param {import("../types.js").StepCalls} answer */
    update({ step, first_step: first, last_step: last }) {
      newest.hidden = ctx.state.step === null;
      if (step === null) return;
      if (document.activeElement !== input) input.value = String(step);
      input.title = `${count(first)} to ${last === null ? "the last" : count(last)}`;
      const focused = jumps.querySelector(":focus")?.getAttribute("data-key");
      replace(jumps, jump("Previous step", step - 1, step > first), jump("Next step", step + 1, last !== null && step < last));
      /** @type {HTMLElement | null} */ (focused ? jumps.querySelector(`[data-key="${focused}"]`) : null)?.focus();
    },
  };
}
