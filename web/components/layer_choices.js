// What the layers' figure shows and how: axes, statistic, order, step. Each writes the URL and nothing else.

import { el, replace } from "../dom.js";
import { choiceOf, choicesOf } from "../statistics.js";

/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {{value: string, text: string, help?: string}} Option */

/** @type {readonly Option[]} */
const AXES = [
  { value: "", text: "steps × layers", help: "Each layer at each step, the worst of the ranks" },
  { value: "step,rank", text: "steps × ranks", help: "Each rank at each step, the worst of the chosen layers" },
  { value: "tensor,rank", text: "layers × ranks", help: "Each layer on each rank, at one step or the worst of the steps" },
];
/** @type {readonly Option[]} */
const SORTS = [
  { value: "", text: "call order" },
  { value: "name", text: "name" },
  { value: "worst", text: "worst first" },
];

/**
 * A labelled list of choices.
 * @param {string} label @param {(value: string) => void} choose
 */
function createChoice(label, choose) {
  const select = el("select", { "aria-label": label, change: () => choose(select.value) });
  let shown = "";
  return {
    element: el("label", { class: "field" }, `${label} `, select),
    /** @param {readonly Option[]} options @param {string} chosen */
    update(options, chosen) {
      const now = JSON.stringify(options);
      if (now !== shown) replace(select, ...options.map(({ value, text, help }) => el("option", { value, title: help }, text)));
      shown = now;
      select.value = chosen;
    },
  };
}

/** @param {PageContext} ctx */
export function createAxesPicker(ctx) {
  const choice = createChoice("Axes", (value) => ctx.setState({ axes: /** @type {any} */ (value) }));
  return { element: choice.element, update: () => choice.update(AXES, ctx.state.axes) };
}

/** @param {PageContext} ctx */
export function createSortPicker(ctx) {
  const choice = createChoice("Order", (value) => ctx.setState({ sort: /** @type {any} */ (value) }));
  return {
    element: choice.element,
    update() {
      choice.update(SORTS, ctx.state.sort);
      choice.element.hidden = ctx.state.axes === "step,rank";
    },
  };
}

/** @param {PageContext} ctx */
export function createStatisticPicker(ctx) {
  const choice = createChoice("Statistic", (value) => ctx.setState({ statistic: value }));
  return {
    element: choice.element,
    /** @param {import("../types.js").Run} run */
    update(run) {
      const { statistic } = ctx.state;
      const known = choicesOf(/** @type {{statistics?: {name: string}[]}} */ (/** @type {unknown} */ (run)).statistics);
      const options = known.map(({ name, title, help }, i) => ({ value: i ? name : "", text: title, help }));
      // One that an address names and the run does not have stays to be seen as what is asked for.
      const isMissing = statistic && !options.some(({ value }) => value === statistic);
      choice.update(isMissing ? [...options, { value: statistic, text: choiceOf(statistic)?.title ?? statistic }] : options, statistic);
    },
  };
}

/** The one step of layers × ranks; empty is the worst of all that are shown. @param {PageContext} ctx */
export function createStepField(ctx) {
  const input = el("input", { type: "number", min: 0, step: 1, placeholder: "all shown", "aria-label": "One step", change: choose });
  function choose() {
    ctx.setState({ step: input.value === "" || !input.validity.valid ? null : Number(input.value) });
  }
  const element = el("label", { class: "field" }, "At step ", input);
  return {
    element,
    update() {
      element.hidden = ctx.state.axes !== "tensor,rank";
      if (document.activeElement !== input) input.value = ctx.state.step === null ? "" : String(ctx.state.step);
    },
  };
}
