// What to trace: how many steps, which modules, which ranks.

import { el } from "../dom.js";
import { MOST_STEPS, patternsOf, ranksOf } from "../trace_words.js";

/** @typedef {import("../trace_words.js").TraceAsked} TraceAsked */

/** @param {(asked: TraceAsked) => void} ask @param {() => void} cancel @param {(text: string) => void} say */
export function createTraceForm(ask, cancel, say) {
  const steps = el("input", { type: "number", name: "steps", min: 1, max: MOST_STEPS, value: 3, required: true });
  const modules = el("input", { name: "modules", maxlength: 2000, placeholder: "all", spellcheck: "false", autocomplete: "off" });
  const ranks = el("input", { name: "ranks", maxlength: 400, placeholder: "all", spellcheck: "false", autocomplete: "off", inputmode: "numeric" });
  const field = (/** @type {string} */ name, /** @type {HTMLElement} */ input, /** @type {string} */ help) => el("label", { class: "trace-field" }, name, input, el("small", { class: "muted" }, help));
  const send = el("button", { type: "submit" }, "Trace");
  const element = el(
    "form",
    { class: "trace-form", "aria-label": "Trace the next steps", hidden: true, submit: submitted },
    field("Steps", steps, `1 to ${MOST_STEPS}; each costs several times a usual one`),
    field("Modules", modules, "such as blocks.*, decoder.norm"),
    field("Ranks", ranks, "such as 0, 2-5"),
    el("div", { class: "trace-buttons" }, send, el("button", { type: "button", class: "quiet", click: cancel }, "Cancel")),
  );
  element.addEventListener("keydown", ({ key }) => key === "Escape" && cancel());

  /** @param {SubmitEvent} event */
  function submitted(event) {
    event.preventDefault();
    try {
      ask({ steps: Number(steps.value), modules: patternsOf(modules.value), ranks: ranksOf(ranks.value) });
    } catch (error) {
      say(error instanceof Error ? error.message : String(error));
    }
  }

  return {
    element,
    focus: () => steps.select(),
    /** @param {boolean} isBusy */
    busy: (isBusy) => void (send.disabled = isBusy),
  };
}
