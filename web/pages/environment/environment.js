// The Environment page: findings on the ranks' machines and settings, what to type, and where ranks differ.

import * as api from "../../api/client.js";
import { pictureOf } from "../../charts/cells/picture.js";
import { el, replace } from "../../format/dom.js";
import { clip, plural } from "../../format/numbers.js";
import { copyButton } from "../../widgets/controls/copy_button.js";
import { createNothing } from "../../widgets/detail_cards.js";
import { runPage } from "../../widgets/run_page.js";
import { createVerdict } from "../../widgets/verdict.js";
import { createLinkMatrix } from "./link_matrix.js";
import { createValues, whose } from "./values.js";

const whyNone = () => [
  "Every rank in training sends its details once, soon after it has attached: torch, CUDA, NCCL, driver, variables, network.",
  el("p", {}, el("code", {}, "rangewatch doctor"), " reports the same, and more, of a machine without a training."),
];

/** @param {import("../../types.js").PageContext} ctx @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const nothing = createNothing("No rank has reported its environment");
  const odd = createFindingList("Ranks that differ", "odd-ranks");
  const findings = createFindingList("Findings", "findings");
  const links = createLinkMatrix(ctx);
  const values = createValues();
  const noLinks = el("p", { class: "muted figure-notes" }, "No linkcheck belongs to this run. ", el("code", {}, "rangewatch linkcheck --post"), " under torchrun or Slurm tests every pair of ranks, and is shown on this page of a run of its own.");
  const element = el("div", {}, verdict.element, nothing.element, el("div", { class: "lanes" }, odd.element, findings.element, links.element, noLinks), values.element);

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
      values.update(answer.ranks);
    },
    destroy() {
      links.destroy();
    },
  };
}

export default runPage({
  id: "environment",
  title: "Environment",
  key: "e",
  help: "What is wrong with the machines, and how ranks differ",
  needsStep: false,
  build,
});

// Findings of the doctor: what, why it matters, what to type; on which ranks.

const MOST = 100;
/** @type {Record<string, string>} */
const SHAPES = { error: "■ error", warning: "▲ warning", info: "○ info" };

/** @param {string} title @param {string} name */
function createFindingList(title, name) {
  const list = el("ul", { class: "finding-list" });
  const element = el("section", { class: "panel findings", "data-testid": name, hidden: true }, el("h2", {}, title), list);
  let shown = "";
  return {
    element,
    /** @param {readonly RanksFinding[]} findings @param {number} ranks how many reported theirs */
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

// Environments as text: findings of many ranks once, details by who has which value.

/** @typedef {import("../../types.js").Environment} Environment */
/** @typedef {import("../../types.js").Finding} Finding */
/** @typedef {Finding & {ranks: number[]}} RanksFinding */

const SEVERITIES = ["error", "warning", "info"];

/** @param {{severity: string}} finding */
const severity = ({ severity }) => (SEVERITIES.includes(severity) ? SEVERITIES.indexOf(severity) : SEVERITIES.length);

/** The same finding on several ranks once, the worst first. @param {Environment["ranks"]} ranks @returns {RanksFinding[]} */
export function mergedFindings(ranks) {
  /** @type {Map<string, RanksFinding>} */
  const merged = new Map();
  for (const { rank, findings } of ranks) {
    for (const finding of findings) {
      const key = JSON.stringify([finding.code, finding.what, finding.where, finding.do]);
      const known = merged.get(key) ?? { ...finding, ranks: [] };
      known.ranks.push(rank);
      merged.set(key, known);
    }
  }
  return [...merged.values()].sort((a, b) => severity(a) - severity(b) || a.ranks[0] - b.ranks[0]);
}

/** @param {Environment} answer @param {RanksFinding[]} findings @returns {import("../../types.js").Verdict} */
export function environmentVerdict({ ranks, odd }, findings) {
  if (!ranks.length) return { level: "empty", parts: [["text", "No rank has reported its environment yet."]], links: [] };
  const all = [...odd, ...findings];
  const worst = all.reduce((low, finding) => Math.min(low, severity(finding)), SEVERITIES.length);
  const who = ranks.length === 1 ? "one rank" : plural(ranks.length, "rank");
  const notes = all.filter((finding) => severity(finding) > 1).length;
  if (worst > 1) {
    const same = ranks.length > 1 && !odd.length ? "; their settings are identical" : "";
    return { level: "ok", parts: [["text", `No problem on ${who}${same}.${notes ? ` ${plural(notes, "note")} below.` : ""}`]], links: [] };
  }
  const first = /** @type {RanksFinding} */ (all.find((finding) => severity(finding) === worst));
  const counts = SEVERITIES.slice(0, 2).flatMap((name, i) => {
    const n = all.filter((finding) => severity(finding) === i).length;
    return n ? [plural(n, name)] : [];
  });
  return { level: worst === 0 ? "critical" : "warning", parts: [["text", `${counts.join(", ")} on ${who}: ${first.what}`]], links: [] };
}
