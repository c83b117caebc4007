// Choices that narrow the layers: rank, kind, name. Each writes the URL and nothing else.

import { el, replace } from "../dom.js";

/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {import("../types.js").Run} Run */

/** Typing rests this long before the name filter is applied. Milliseconds. */
const REST_MS = 250;

/** @param {PageContext} ctx @param {{all: boolean}} options whether "worst of all ranks" is offered */
export function createRankPicker(ctx, { all }) {
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
        replace(select, all && el("option", { value: "all" }, "all (worst of all ranks)"), ...options);
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
    /** What the server said of the filter, or nothing. @param {string} text */
    say(text) {
      problem.textContent = text && `Name filter: ${text}.`;
      input.setAttribute("aria-invalid", String(Boolean(text)));
    },
    destroy: () => clearTimeout(rest),
  };
}

const EXPRESSIONS = [
  ["attn", "names with attn in them, in any case"],
  ["blocks.*.attn", "whole module names: * any characters, ? one"],
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
