// Environments in words: findings of many ranks once, facts by who has which value. Pure.

import { plural, rankList } from "./format.js";

/** @typedef {import("./types.js").Environment} Environment */
/** @typedef {import("./types.js").Finding} Finding */
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

/** @param {Environment} answer @param {RanksFinding[]} findings @returns {import("./types.js").Verdict} */
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
export function flatFacts(value, prefix = "", depth = 0) {
  if (typeof value === "object" && value !== null && !Array.isArray(value) && depth < DEEPEST) {
    return Object.entries(value).flatMap(([name, inner]) => flatFacts(inner, prefix ? `${prefix}.${name}` : name, depth + 1));
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
export function factSections(ranks) {
  /** @type {Map<string, Map<string, number[]>>} */
  const byKey = new Map();
  for (const { rank, facts } of ranks) {
    for (const [key, text] of flatFacts(facts)) {
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
export const isDiffering = ({ values }) => values.length > 1;

/** @param {readonly number[]} mine @param {number} all */
export const whose = (mine, all) => (mine.length === all ? (all === 1 ? rankList(mine) : "all ranks") : rankList(mine));
