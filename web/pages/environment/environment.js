// The Environment page: findings on the ranks' machines and settings, what to type, and the details of all ranks by
// topic.

import * as api from "../../api/client.js";
import { pictureOf } from "../../charts/cells/picture.js";
import { el, replace } from "../../format/dom.js";
import { clip, plural, rankList } from "../../format/numbers.js";
import { copyButton } from "../../widgets/copy_button.js";
import { createNothing } from "../../widgets/detail_cards.js";
import { mountRunPage } from "../../widgets/run_page.js";
import { createVerdict } from "../../widgets/verdict.js";
import { createLinkMatrix } from "./link_matrix.js";

const whyNone = () => [
  "Every rank in training sends its facts once, soon after it has attached: torch, CUDA, NCCL, driver, variables, network.",
  el("p", {}, el("code", {}, "rangewatch doctor"), " says the same, and more, of a machine without a training."),
];

/** @param {import("../../types.js").PageContext} ctx @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const nothing = createNothing("No rank has told of its environment");
  const odd = createFindingList("Ranks that differ", "odd-ranks");
  const findings = createFindingList("Findings", "findings");
  const links = createLinkMatrix(ctx);
  const facts = createDetailSections();
  const factsTitle = el("h2", { class: "part-title" }, "Facts of the ranks");
  const noLinks = el("p", { class: "muted figure-notes" }, "No linkcheck belongs to this run. ", el("code", {}, "rangewatch linkcheck --post"), " under torchrun or Slurm tests every pair of ranks, and is shown on this page of a run of its own.");
  const element = el("div", {}, verdict.element, nothing.element, el("div", { class: "lanes" }, odd.element, findings.element, links.element, noLinks), factsTitle, facts.element);

  return {
    element,
    async update(about, signal) {
      const answer = await api.environment(run, signal);
      const merged = mergedFindings(answer.ranks);
      const isEmpty = !answer.ranks.length;
      verdict.element.hidden = isEmpty;
      verdict.update(environmentVerdict(answer, merged));
      nothing.update(isEmpty && answer.linkcheck === null ? whyNone() : null);
      odd.update(answer.odd, answer.ranks.length);
      findings.update(merged, answer.ranks.length);
      links.update(answer.linkcheck, about.now_ns ?? Date.now() * 1e6, pictureOf(about, null));
      noLinks.hidden = answer.linkcheck !== null;
      factsTitle.hidden = isEmpty;
      facts.update(answer.ranks);
    },
    destroy() {
      links.destroy();
    },
  };
}

/** @type {import("../../types.js").Page} */
export default {
  id: "environment",
  title: "Environment",
  path: "/runs/{id}/environment",
  mount: (root, ctx) => mountRunPage(root, ctx, "Environment", () => build(ctx), { needsStep: false }),
};

// Findings of the doctor: what, why it matters, what to type; on which ranks.

const MOST = 100;
/** @type {Record<string, string>} */
const SHAPES = { error: "■ error", warning: "▲ warning", info: "○ note" };

/** @param {string} title @param {string} name */
function createFindingList(title, name) {
  const list = el("ul", { class: "finding-list" });
  const element = el("section", { class: "panel findings", "data-testid": name, hidden: true }, el("h2", {}, title), list);
  let shown = "";
  return {
    element,
    /** @param {readonly RanksFinding[]} findings @param {number} ranks how many told of theirs */
    update(findings, ranks) {
      const now = JSON.stringify([findings, ranks]);
      if (now === shown) return;
      shown = now;
      element.hidden = findings.length === 0;
      replace(list, ...findings.slice(0, MOST).map((finding) => item(finding, ranks)));
    },
  };
}

/** @param {RanksFinding} finding @param {number} ranks */
function item(finding, ranks) {
  const { severity, what, why, do: todo, where, ranks: mine } = finding;
  return el(
    "li",
    { "data-severity": severity },
    el("p", { class: "finding-what" }, el("strong", { class: "finding-severity" }, SHAPES[severity] ?? severity), " ", clip(what, 500)),
    el("p", { class: "muted" }, [clip(whose(mine, ranks), 120), clip(where, 120)].filter(Boolean).join("; ")),
    why && el("p", {}, clip(why, 800)),
    todo && el("div", { class: "paste" }, el("pre", { tabindex: 0, "aria-label": "What to type" }, todo), copyButton(() => todo)),
  );
}

// The details of all ranks, a section a topic: a value that all share stands once, others with who has them.

/** Values of one fact that are shown. */
const MOST_VALUES = 6;

function createDetailSections() {
  const element = el("div", { class: "lanes", "data-testid": "facts" });
  let shown = "";
  return {
    element,
    /** @param {import("../../types.js").Environment["ranks"]} ranks */
    update(ranks) {
      const now = JSON.stringify(ranks);
      if (now === shown) return;
      shown = now;
      const opened = new Map([...element.querySelectorAll("details")].map((one) => [one.dataset.section, one.open]));
      const sections = detailSections(ranks).filter(({ facts }) => facts.length);
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

// Environments as text: findings of many ranks once, details by who has which value.

/** @typedef {import("../../types.js").Environment} Environment */
/** @typedef {import("../../types.js").Finding} Finding */
/** @typedef {Finding & {ranks: number[]}} RanksFinding */
/** @typedef {{key: string, values: {text: string, ranks: number[]}[]}} Fact values: the most frequent first */
/** @typedef {{name: string, facts: Fact[], differing: number}} Section */

const SEVERITIES = ["error", "warning", "info"];
/** Facts nest no deeper than this before they are shown as JSON. */
const DEEPEST = 3;

/** @param {{severity: string}} finding */
const severity = ({ severity }) => (SEVERITIES.includes(severity) ? SEVERITIES.indexOf(severity) : SEVERITIES.length);

/** The same finding on several ranks once, the worst first. @param {Environment["ranks"]} ranks @returns {RanksFinding[]} */
export function mergedFindings(ranks) {
  /** @type {Map<string, RanksFinding>} */
  const found = new Map();
  for (const { rank, findings } of ranks) {
    for (const finding of findings) {
      const key = JSON.stringify([finding.code, finding.what, finding.where, finding.do]);
      const known = found.get(key) ?? { ...finding, ranks: [] };
      known.ranks.push(rank);
      found.set(key, known);
    }
  }
  return [...found.values()].sort((a, b) => severity(a) - severity(b) || a.ranks[0] - b.ranks[0]);
}

/** @param {Environment} answer @param {RanksFinding[]} findings @returns {import("../../types.js").Verdict} */
export function environmentVerdict({ ranks, odd }, findings) {
  if (!ranks.length) return { level: "empty", parts: [["text", "No rank has told of its environment yet."]], links: [] };
  const all = [...odd, ...findings];
  const worst = all.reduce((low, finding) => Math.min(low, severity(finding)), SEVERITIES.length);
  const who = ranks.length === 1 ? "one rank" : plural(ranks.length, "rank");
  const notes = all.filter((finding) => severity(finding) > 1).length;
  if (worst > 1) {
    const alike = ranks.length > 1 && !odd.length ? ", and they are alike" : "";
    return { level: "ok", parts: [["text", `Nothing wrong was found on ${who}${alike}.${notes ? ` ${plural(notes, "note")} below.` : ""}`]], links: [] };
  }
  const first = /** @type {RanksFinding} */ (all.find((finding) => severity(finding) === worst));
  const counts = SEVERITIES.slice(0, 2).flatMap((name, i) => {
    const n = all.filter((finding) => severity(finding) === i).length;
    return n ? [plural(n, name)] : [];
  });
  return { level: worst === 0 ? "overflow" : "warning", parts: [["text", `${counts.join(", ")} on ${who}: ${first.what}`]], links: [] };
}

/** Facts as dotted names and text. @param {unknown} value @param {string} [prefix] @param {number} [depth] @returns {[string, string][]} */
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

/** All facts by section, each with its values and who has them; where ranks differ comes first. @param {Environment["ranks"]} ranks @returns {Section[]} */
export function detailSections(ranks) {
  /** @type {Map<string, Map<string, number[]>>} */
  const byKey = new Map();
  for (const { rank, facts } of ranks) {
    for (const [key, text] of flatDetails(facts)) {
      const values = byKey.get(key) ?? new Map();
      values.set(text, [...(values.get(text) ?? []), rank]);
      byKey.set(key, values);
    }
  }
  /** @type {Map<string, Fact[]>} */
  const sections = new Map();
  for (const [key, values] of byKey) {
    const name = key.split(".")[0];
    const fact = { key, values: [...values].map(([text, mine]) => ({ text, ranks: mine })).sort((a, b) => b.ranks.length - a.ranks.length) };
    sections.set(name, [...(sections.get(name) ?? []), fact]);
  }
  return [...sections].map(([name, facts]) => ({ name, differing: facts.filter(isDiffering).length, facts: facts.sort((a, b) => Number(isDiffering(b)) - Number(isDiffering(a))) }));
}

/** @param {Fact} fact */
const isDiffering = ({ values }) => values.length > 1;

/** @param {readonly number[]} mine @param {number} all */
export const whose = (mine, all) => (mine.length === all ? (all === 1 ? rankList(mine) : "all ranks") : rankList(mine));
