// Which steps are shown, typed or reset; drags on the figures write the same place.

import { el, replace } from "../dom.js";
import { steps } from "../format.js";
import { shownRange } from "../url_state.js";

/** @param {import("../types.js").PageContext} ctx @param {...import("../dom.js").Child} hint */
export function createRangeBar(ctx, ...hint) {
  const shown = el("span", { class: "range-shown" });
  const reset = el("button", { type: "button", class: "quiet", click: () => ctx.setState({ start: null, stop: null }) }, "Show all steps");
  const following = el("span", { class: "range-following", "data-testid": "following" }, "● following the newest step");
  const from = field("First step");
  const to = field("Last step");
  const form = el("form", { class: "range-form", submit: apply }, el("label", {}, "steps ", from), el("label", {}, " to ", to), el("button", { type: "submit", class: "quiet" }, "Go"));
  const help = el("details", { class: "hint" }, el("summary", {}, "How to read and move"), ...hint);
  const element = el("div", { class: "range-bar" }, form, shown, following, reset, help);

  /** @param {SubmitEvent} event */
  function apply(event) {
    event.preventDefault();
    const start = from.value === "" ? null : Number(from.value);
    const last = to.value === "" ? null : Number(to.value);
    if (start !== null && last !== null && last < start) return ctx.say("The last step lies before the first.");
    return ctx.setState({ start, stop: last === null ? null : last + 1 });
  }

  return {
    element,
    /** @param {import("../types.js").Run} run */
    update(run) {
      const { start, stop } = ctx.state;
      const range = shownRange(ctx.state, run);
      const zoomed = start !== null || stop !== null;
      reset.hidden = !zoomed;
      replace(shown, zoomed ? steps(range) : "");
      following.hidden = run.state !== "live" || stop !== null;
      put(from, start);
      put(to, stop === null ? null : stop - 1);
      from.placeholder = String(run.first_step ?? 0);
      to.placeholder = String(run.last_step ?? 0);
    },
  };
}

/** @param {string} name */
const field = (name) => el("input", { type: "number", min: 0, step: 1, "aria-label": name });

/** Never under the reader's fingers. @param {HTMLInputElement} input @param {number | null} value */
function put(input, value) {
  if (document.activeElement !== input) input.value = value === null ? "" : String(value);
}
