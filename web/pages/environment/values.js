// The environments of all ranks: a table of where they differ, and one of all values with a search.

import { el, replace } from "../../format/dom.js";
import { clip, count, plural, rankList } from "../../format/numbers.js";

/** @typedef {import("../../types.js").Environment} Environment */
/** @typedef {{key: string, values: {text: string, ranks: number[]}[]}} Detail values: the most frequent first */

/** Values of one detail that are shown. */
const MOST_VALUES = 6;
/** Rows drawn at most: a search shows the others. */
const MOST_ROWS = 500;
/** Details nest no deeper than this before they are shown as JSON. */
const DEEPEST = 3;

export function createValues() {
  const differing = el("tbody");
  const same = el("p", { class: "panel values-same" });
  const differences = el("section", { "data-testid": "differences" }, el("h2", { class: "part-title" }, "Differences between ranks"), same, tableOf(differing, "Differences between ranks"));
  const search = el("input", { type: "search", placeholder: "name or value", "aria-label": "Search the environment", spellcheck: "false", autocomplete: "off", input: draw });
  const shown = el("span", { class: "muted", role: "status" });
  const rows = el("tbody");
  const all = el("section", { "data-testid": "details" }, el("h2", { class: "part-title" }, "All values"), el("p", { class: "inline-form" }, search, shown), tableOf(rows, "All values", "values-all"));
  const element = el("div", { hidden: true }, differences, all);
  /** @type {Detail[]} */
  let details = [];
  let ranks = 0;
  let known = "";

  function draw() {
    const found = matching(details, search.value);
    shown.textContent = found.length > MOST_ROWS ? `the first ${count(MOST_ROWS)} of ${count(found.length)}` : `${count(found.length)} of ${count(details.length)}`;
    replace(rows, ...found.slice(0, MOST_ROWS).map((detail) => row(detail, ranks)));
  }

  return {
    element,
    /** @param {Environment["ranks"]} given */
    update(given) {
      const now = JSON.stringify(given);
      if (now === known) return;
      known = now;
      ranks = given.length;
      details = detailsOf(given);
      const different = differencesOf(details, ranks);
      element.hidden = ranks === 0;
      differences.hidden = ranks < 2;
      same.hidden = different.length > 0;
      same.textContent = `Identical on all ${plural(ranks, "rank")}, but for what each rank has of its own.`;
      replace(differing, ...different.map((detail) => row(detail, ranks)));
      differing.closest(".table-scroll")?.toggleAttribute("hidden", !different.length);
      draw();
    },
  };
}

/** @param {HTMLElement} body @param {string} name @param {string} [kind] a class of its own */
function tableOf(body, name, kind = "") {
  const head = el("tr", {}, el("th", { scope: "col" }, "Name"), el("th", { scope: "col" }, "Value"));
  const table = el("table", { class: "dense details-table" }, el("caption", { class: "visually-hidden" }, name), el("thead", { class: "visually-hidden" }, head), body);
  return el("div", { class: `panel table-scroll ${kind}`, tabindex: 0, role: "region", "aria-label": name }, table);
}

/** @param {Detail} detail @param {number} ranks */
function row(detail, ranks) {
  return el("tr", { "data-differs": isDiffering(detail, ranks) }, el("th", { scope: "row" }, clip(detail.key, 80)), el("td", {}, ...valuesOf(detail, ranks)));
}

/** @param {Detail} detail @param {number} ranks */
function valuesOf(detail, ranks) {
  const many = detail.values.length - MOST_VALUES;
  const lines = detail.values.slice(0, MOST_VALUES).map(({ text, ranks: mine }) => el("p", {}, clip(text, 300), isDiffering(detail, ranks) ? el("span", { class: "muted" }, ` on ${clip(whose(mine, ranks), 80)}`) : null));
  return many > 0 ? [...lines, el("p", { class: "muted" }, `${many} more values`)] : lines;
}

// Details as text, by who has which value.

/** Variables that a launcher gives each rank another value of. */
const OWN = /^variables\.(RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID|TORCHELASTIC_\w+)$/;

/** Where ranks differ, fewest values first; not what every rank has of its own, such as its number. Pure. @param {readonly Detail[]} details @param {number} ranks */
export function differencesOf(details, ranks) {
  const isOwn = (/** @type {Detail} */ { key, values }) => OWN.test(key) || (ranks > 2 && values.length === ranks);
  return details.filter((detail) => isDiffering(detail, ranks) && !isOwn(detail)).sort((a, b) => a.values.length - b.values.length);
}

/** Those with a text in name or value, in any case; all its words must be there. Pure. @param {readonly Detail[]} details @param {string} text */
export function matching(details, text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  return details.filter(({ key, values }) => {
    const own = `${key} ${values.map((value) => value.text).join(" ")}`.toLowerCase();
    return wanted.every((word) => own.includes(word));
  });
}

/** Details as dotted names and text. @param {unknown} value @param {string} [prefix] @param {number} [depth] @returns {[string, string][]} */
export function flatDetails(value, prefix = "", depth = 0) {
  if (typeof value === "object" && value !== null && !Array.isArray(value) && depth < DEEPEST) {
    return Object.entries(value).flatMap(([name, inner]) => flatDetails(inner, prefix ? `${prefix}.${name}` : name, depth + 1));
  }
  return [[prefix, textOf(value)]];
}

/** @param {unknown} value @returns {string} */
function textOf(value) {
  if (value === null || value === undefined || value === "") return "n/a";
  if (Array.isArray(value)) return value.length ? value.map((one) => (typeof one === "object" ? JSON.stringify(one) : String(one))).join(", ") : "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Each detail with its values and who has them, by name. @param {Environment["ranks"]} ranks @returns {Detail[]} */
export function detailsOf(ranks) {
  /** @type {Map<string, Map<string, number[]>>} */
  const byKey = new Map();
  for (const { rank, facts } of ranks) {
    for (const [key, text] of flatDetails(facts)) {
      const values = byKey.get(key) ?? new Map();
      values.set(text, [...(values.get(text) ?? []), rank]);
      byKey.set(key, values);
    }
  }
  const details = [...byKey].map(([key, values]) => ({ key, values: [...values].map(([text, mine]) => ({ text, ranks: mine })).sort((a, b) => b.ranks.length - a.ranks.length) }));
  return details.sort((a, b) => a.key.localeCompare(b.key, "en", { numeric: true }));
}

/** What some ranks do not have differs too. @param {Detail} detail @param {number} ranks */
const isDiffering = ({ values }, ranks) => values.length > 1 || values[0].ranks.length < ranks;

/** @param {readonly number[]} mine @param {number} all */
export const whose = (mine, all) => (mine.length === all ? (all === 1 ? rankList(mine) : "all ranks") : rankList(mine));
