// What the list of runs is narrowed and ordered by. Each choice writes the address and nothing else.

import { SHOWN, SORTS, STATES, comparePath, parseRunQuery, runsPath } from "../../api/run_query.js";
import { el, link, replace } from "../../format/dom.js";
import { plural } from "../../format/numbers.js";

/** @typedef {import("../../api/run_query.js").RunQuery} RunQuery */

/** Typing rests this long before it is searched for. Milliseconds. */
const REST_MS = 250;

/** @param {import("../../types.js").PageContext} ctx */
export function createRunFilters(ctx) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let rest;
  const search = el("input", { type: "search", maxlength: 200, placeholder: "name, title or tag", input: typed });
  const state = select(Object.fromEntries(Object.entries(STATES).map(([value, { text }]) => [value, text])), (value) => go({ state: value }));
  const sort = select(SORTS, (value) => go({ sort: value === "newest" ? "" : value }));
  const archived = select(SHOWN, (value) => go({ archived: value }));
  const field = (/** @type {string} */ name, /** @type {HTMLElement} */ control) => el("label", { class: "field" }, `${name} `, control);
  const element = el("form", { class: "filters run-filters", role: "search", submit: (/** @type {Event} */ event) => event.preventDefault() }, field("Search", search), field("State", state), field("Order", sort), field("Show", archived));

  /** @param {Partial<RunQuery>} patch */
  function go(patch) {
    ctx.navigate(runsPath({ ...parseRunQuery(location.search), before: "", offset: "", ...patch }));
  }

  function typed() {
    clearTimeout(rest);
    rest = setTimeout(() => go({ q: search.value.trim() }), REST_MS);
  }

  return {
    element,
    /** As the address has it. @param {RunQuery} query */
    update(query) {
      if (document.activeElement !== search) search.value = query.q;
      state.value = query.state;
      sort.value = query.sort || "newest";
      archived.value = query.archived;
    },
    stop: () => clearTimeout(rest),
  };
}

/** @param {Record<string, string>} options value -> text @param {(value: string) => void} chosen */
function select(options, chosen) {
  const element = el("select", { change: () => chosen(element.value) }, ...Object.entries(options).map(([value, text]) => el("option", { value }, text)));
  return element;
}

/** How many are ticked, and the way to them side by side. */
export function createCompareBar() {
  const element = el("span", { class: "compare-bar", "data-testid": "compare-bar" });
  return {
    element,
    /** @param {RunQuery} query */
    update(query) {
      const { picked } = query;
      const clear = link(runsPath({ ...query, picked: [] }), {}, "Untick");
      if (!picked.length) replace(element, el("span", { class: "muted" }, "Tick 2 to 8 runs to compare them"));
      else if (picked.length === 1) replace(element, el("span", { class: "muted" }, "1 run ticked, tick another"), clear);
      else replace(element, link(comparePath(picked), { class: "button-link" }, `Compare ${plural(picked.length, "run")}`), clear);
    },
  };
}
