// What the list of runs is narrowed by. Each choice writes the address and nothing else.

import { el } from "../dom.js";
import { SHOWN, SORTS, parseRunQuery, runsPath } from "../run_query.js";

/** Typing rests this long before it is searched for. Milliseconds. */
const REST_MS = 250;

/** @param {import("../types.js").PageContext} ctx */
export function createRunFilters(ctx) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let rest;
  const search = el("input", { type: "search", maxlength: 200, placeholder: "name, title or tag", input: typed });
  const sort = select(SORTS, (value) => go({ sort: value === "newest" ? "" : value }));
  const archived = select(SHOWN, (value) => go({ archived: value }));
  const field = (/** @type {string} */ name, /** @type {HTMLElement} */ control) => el("label", { class: "field" }, `${name} `, control);
  const element = el("form", { class: "filters", role: "search", submit: (/** @type {Event} */ event) => event.preventDefault() }, field("Search", search), field("Order", sort), field("Show", archived));

  /** @param {Partial<import("../run_query.js").RunQuery>} patch */
  function go(patch) {
    ctx.navigate(runsPath({ ...parseRunQuery(location.search), before: "", offset: "", ...patch }));
  }

  function typed() {
    clearTimeout(rest);
    rest = setTimeout(() => go({ q: search.value.trim() }), REST_MS);
  }

  return {
    element,
    /** As the address has it. @param {import("../run_query.js").RunQuery} query */
    update(query) {
      if (document.activeElement !== search) search.value = query.q;
      sort.value = query.sort || "newest";
      archived.value = query.archived;
    },
    stop: () => clearTimeout(rest),
  };
}

/** @param {Record<string, string>} options value -> words @param {(value: string) => void} chosen */
function select(options, chosen) {
  const element = el("select", { change: () => chosen(element.value) }, ...Object.entries(options).map(([value, words]) => el("option", { value }, words)));
  return element;
}
