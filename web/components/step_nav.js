// Previous and next: step, rank, non-finite step.

import { el, link, replace } from "../dom.js";
import { onward, runPath } from "../url_state.js";
import { createNameFilter, createRankPicker } from "./filters.js";

/** @typedef {import("../types.js").StepAnswer} StepAnswer */

/** @param {import("../types.js").PageContext} ctx */
export function createStepNav(ctx) {
  const run = ctx.params.id;
  const picker = createRankPicker(ctx, { all: false });
  const name = createNameFilter(ctx);
  const input = el("input", { type: "number", min: 0, name: "step", "aria-label": "Step" });
  const form = el("form", { class: "inline-form", submit: go }, el("label", { class: "field" }, "Step ", input), el("button", { type: "submit", class: "quiet" }, "Go"));
  const jumps = el("div", { class: "jumps" });

  /** @param {SubmitEvent} event */
  function go(event) {
    event.preventDefault();
    if (input.value !== "") ctx.setState({ step: Number(input.value) });
  }

  /** @param {StepAnswer} answer */
  function links(answer) {
    const { step, rank, ranks, first_step, last_step } = answer;
    const at = ranks.indexOf(rank);
    const to = jumper(run, answer, ctx.state);
    return [
      to("Previous step", { step: step > first_step ? step - 1 : null, rank }),
      to("Next step", { step: step < last_step ? step + 1 : null, rank }),
      to("Previous rank", { step, rank: ranks[at - 1] ?? null }),
      to("Next rank", { step, rank: ranks[at + 1] ?? null }),
      to("Previous non-finite step", { step: answer.previous_nonfinite_step, rank }),
      to("Next non-finite step", { step: answer.next_nonfinite_step, rank }),
    ];
  }

  return {
    element: el("div", { class: "filters" }, form, picker.element, name.element, jumps),
    /** @param {StepAnswer} answer */
    update(answer) {
      if (document.activeElement !== input) input.value = String(answer.step);
      picker.update(answer.ranks, answer.rank);
      name.update();
      replace(jumps, ...links(answer));
    },
    destroy: name.destroy,
  };
}

/**
 * A link to another step or rank, or the same words dimmed where there is none.
 * @param {string} run @param {StepAnswer} answer @param {import("../types.js").ViewState} state
 * @returns {(name: string, to: {step: number | null, rank: number | null}) => HTMLElement}
 */
const jumper = (run, answer, state) => (name, { step, rank }) => {
  if (step === null || rank === null) return el("span", { class: "jump", "aria-disabled": "true" }, name);
  const { q, tensor } = state;
  const kept = rank !== answer.rank ? { tensor } : {};
  return link(runPath(run, "step", onward(state, { step, rank, q, ...kept })), { class: "jump" }, name);
};
