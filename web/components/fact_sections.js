// The facts of all ranks, a section a topic: a value that all share stands once, others with who has them.

import { el, replace } from "../dom.js";
import { clip, plural } from "../format.js";
import { factSections, isDiffering, whose } from "../environment_words.js";

/** @typedef {import("../environment_words.js").Section} Section */
/** @typedef {import("../environment_words.js").Fact} Fact */

/** Values of one fact that are shown. */
const MOST_VALUES = 6;

export function createFactSections() {
  const element = el("div", { class: "lanes", "data-testid": "facts" });
  let shown = "";
  return {
    element,
    /** @param {import("../types.js").Environment["ranks"]} ranks */
    update(ranks) {
      const now = JSON.stringify(ranks);
      if (now === shown) return;
      shown = now;
      const opened = new Map([...element.querySelectorAll("details")].map((one) => [one.dataset.section, one.open]));
      const sections = factSections(ranks).filter(({ facts }) => facts.length);
      replace(element, ...sections.map((section) => panel(section, ranks.length, opened.get(section.name) ?? section.name === "torch")));
    },
  };
}

/** @param {Section} section @param {number} ranks @param {boolean} open */
function panel({ name, facts, differing }, ranks, open) {
  const rows = facts.map((fact) => el("tr", { "data-differs": isDiffering(fact) }, el("th", { scope: "row" }, clip(fact.key, 80)), el("td", {}, ...valuesOf(fact, ranks))));
  const note = differing ? `${plural(differing, "value")} not the same on all ranks` : ranks > 1 ? "the same on all ranks" : "";
  return el("details", { class: "panel report", open, "data-section": name }, el("summary", {}, el("strong", {}, clip(name, 80)), " ", el("span", { class: differing ? "differs" : "muted" }, note)), el("div", { class: "table-scroll" }, el("table", { class: "dense fact-table" }, el("tbody", {}, ...rows))));
}

/** @param {Fact} fact @param {number} ranks */
function valuesOf(fact, ranks) {
  const many = fact.values.length - MOST_VALUES;
  const lines = fact.values.slice(0, MOST_VALUES).map(({ text, ranks: mine }) => el("p", {}, clip(text, 300), isDiffering(fact) || mine.length < ranks ? el("span", { class: "muted" }, ` on ${clip(whose(mine, ranks), 80)}`) : null));
  return many > 0 ? [...lines, el("p", { class: "muted" }, `${many} more values`)] : lines;
}
