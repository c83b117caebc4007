// The filters of figures and tables: rank, kind, name, axes, statistic, order, step. Each writes the URL and nothing
// else.

import { choiceOf, defaultOf } from "../../charts/statistics.js";
import { el, replace } from "../../format/dom.js";

/** @typedef {import("../../types.js").PageContext} PageContext */
/** @typedef {import("../../types.js").Run} Run */

/** Typing rests this long before the name filter is applied. Milliseconds. */
const REST_MS = 250;

/** @param {PageContext} ctx @param {{all: boolean, merged?: string}} options all: whether they are offered together, as what `merged` says */
export function createRankPicker(ctx, { all, merged = "worst of all ranks" }) {
  const select = el("select", { "aria-label": "Rank", change: choose });
  function choose() {
    ctx.setState({ rank: select.value === "all" ? "all" : Number(select.value) });
  }
  return {
    element: el("label", { class: "field" }, "Rank ", select),
    /** @param {readonly number[]} ranks @param {number | "all" | null} chosen */
    update(ranks, chosen) {
      const options = ranks.map((rank) => el("option", { value: rank }, rank));
      if (document.activeElement !== select || select.options.length !== options.length + Number(all)) {
        replace(select, all && el("option", { value: "all" }, `all (${merged})`), ...options);
      }
      select.value = String(chosen ?? "all");
    },
  };
}

/** @param {PageContext} ctx */
export function createKindFilter(ctx) {
  const element = el("div", { class: "kinds", role: "group", "aria-label": "Kinds of tensor" });
  /** @param {string} kind */
  function toggle(kind) {
    const { kinds } = ctx.state;
    ctx.setState({ kinds: kinds.includes(kind) ? kinds.filter((one) => one !== kind) : [...kinds, kind] });
  }
  let shown = "";
  return {
    element,
    /** @param {string[]} kinds */
    update(kinds) {
      const chosen = ctx.state.kinds;
      const now = JSON.stringify([kinds, chosen]);
      if (now === shown) return;
      shown = now;
      const focused = element.querySelector(":focus")?.textContent;
      const all = chip("all kinds", chosen.length === 0, () => ctx.setState({ kinds: [] }));
      const buttons = [all, ...kinds.map((kind) => chip(kind, chosen.includes(kind), () => toggle(kind)))];
      replace(element, ...buttons);
      buttons.find((button) => button.textContent === focused)?.focus();
    },
  };
}

/** @param {string} name @param {boolean} pressed @param {() => void} click */
function chip(name, pressed, click) {
  return el("button", { type: "button", class: "chip", "aria-pressed": String(pressed), click }, name);
}

/** @param {PageContext} ctx */
export function createNameFilter(ctx) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let rest;
  const problem = el("span", { id: "name-problem", class: "field-problem", role: "alert" });
  const input = el("input", { type: "search", placeholder: "part of a name, or blocks.*.attn", "aria-label": "Part of a layer's name", "aria-describedby": "name-problem", spellcheck: "false", input: typed });
  function typed() {
    clearTimeout(rest);
    rest = setTimeout(() => ctx.setState({ q: input.value.trim() }, { replace: true }), REST_MS);
  }
  return {
    element: el("label", { class: "field" }, "Name ", input),
    help: nameHelp(),
    /** What is wrong with what was typed, beside the field. */
    problem,
    update() {
      if (document.activeElement !== input) input.value = ctx.state.q;
    },
    /** The server's message about the filter, or nothing. @param {string} text */
    showProblem(text) {
      problem.textContent = text && `Name filter: ${text}.`;
      input.setAttribute("aria-invalid", String(Boolean(text)));
    },
    destroy: () => clearTimeout(rest),
  };
}

const EXPRESSIONS = [
  ["attn", "names with attn in them, in any case"],
  ["blocks.*.attn", "whole parts of a name, wherever they are: * any characters, ? one"],
  ["in:blocks.3", "the module blocks.3 and all inside it"],
  ["kind:grad*", "a kind; dtype:float16 and type:Linear likewise"],
  ["attn !in:blocks.0", "both hold; ! for what must not be"],
  ["*.attn | *.ff", "either"],
];

/** What can be typed besides a part of a name. */
function nameHelp() {
  const rows = EXPRESSIONS.map(([text, meaning]) => el("tr", {}, el("td", {}, el("code", {}, text)), el("td", {}, meaning)));
  return el("details", { class: "filter-help" }, el("summary", {}, "Name expressions"), el("table", {}, el("tbody", {}, ...rows)));
}

// What the layers' figure shows and how: axes, statistic, order, step. Each writes the URL and nothing else.

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
    /** @param {import("../../types.js").Run} run */
    update(run) {
      const statistic = ctx.state.statistic || defaultOf(run);
      const options = (run.derived ?? []).map(({ name, title, aka, help }) => ({ value: name, text: aka ? `${title} (${aka})` : title, help }));
      // One that an address names and the run does not have stays to be seen as what is asked for.
      const isMissing = statistic && !options.some(({ value }) => value === statistic);
      choice.update(isMissing ? [...options, { value: statistic, text: choiceOf(run, statistic)?.title ?? statistic }] : options, statistic);
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
