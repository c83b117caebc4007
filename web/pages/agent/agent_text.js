// Texts of the Agent page: ranks that report the same are grouped, the worst first. Pure.

import { clip, count, plural, rankList, seconds } from "../../format/numbers.js";
import { percent } from "../../format/units.js";

/** @typedef {import("../../types.js").RankInfo} RankInfo */
/** @typedef {{reason: string, why: string, total: number, ranks: number[], worst: number, most: number}} Dropped `worst`: the rank that dropped most */
/** @typedef {{what: string, why: string, ranks: number[]}} Account one thing that is the same on some ranks */
/**
 * @typedef {object} AgentGroup Ranks whose agents report the same, but for how often.
 * @property {number[]} ranks
 * @property {string} state
 * @property {string[]} hosts
 * @property {string[]} devices
 * @property {string | null} level
 * @property {string[]} dropped reasons
 * @property {number} droppedCount
 * @property {string[]} faults places
 * @property {number} notObserved modules
 * @property {string[]} notFused devices
 * @property {number} badness
 */

/** Why something is dropped. @type {Record<string, string>} */
const REASONS = {
  queue_full: "the queue in memory was full: the server was away or slow, and there was no spool, or its disk was full",
  spool_full: "the spool on the disk was full, and its steps could not be merged any more",
  spool_damaged: "a file of the spool was damaged or deleted",
  too_large: "a batch had more than 16 MiB",
  server_rejected: "the server refused a batch for good; its log has the reason",
  worker_behind: "the agent's own thread did not keep up with the training",
  samples_behind: "samples of the collectors waited too long to be sent",
  too_many_events: "more events came than a batch may hold",
  too_many_values: "more values on the device were logged in a step than there is room for",
  captured_value: "a value was logged while a CUDA graph was captured, and had no number yet",
  logged_again: "a second value of one name was logged for a step that had ended",
  reserved_name: "a value was logged by a name that the agent uses itself",
  batch_ids: "rangewatch.batch(ids=...) was given what is no list of whole numbers or strings",
  batch_losses: "rangewatch.batch(losses=...) was given what is no 1-D tensor with a loss a row",
  too_many_batches: "the rows of more steps stood out than are sent: 64 of 1,024 steps, 2,048 in all",
  mirror_failed: "an experiment tracker refused rows of headline numbers; Rangewatch itself has them all",
  mirror_alerts: "more alerts opened than an experiment tracker is given: 200",
  agent_fault: "the agent failed at a batch, and left it out",
};

/** @param {string} reason */
export const whyDropped = (reason) => REASONS[reason] ?? "";

/** Numbers, or 1 where something else was sent. @param {Record<string, unknown>} account @returns {[string, number][]} */
const counts = (account) => Object.entries(account).map(([name, n]) => [name, Number.isFinite(Number(n)) ? Number(n) : 1]);

/** The largest weight is shown first. @param {RankInfo} rank */
function badness(rank) {
  const has = (/** @type {Record<string, unknown> | undefined} */ account) => Object.keys(account ?? {}).length > 0;
  const isAway = ["failed", "died", "terminated", "interrupted", "stale"].includes(rank.state);
  const weights = [has(rank.faults) && 32, has(rank.dropped) && 16, isAway && 8, Boolean(rank.also_live) && 8, rank.level && 4, has(rank.not_observed) && 2, has(rank.not_fused) && 1];
  return weights.reduce((/** @type {number} */ sum, weight) => sum + Number(weight || 0), 0);
}

/** What makes two ranks the same to a reader. @param {RankInfo} rank */
const likeness = (rank) =>
  JSON.stringify([rank.state, rank.level, Boolean(rank.also_live), ...[rank.dropped, rank.faults].map((account) => Object.keys(account).sort()), ...[rank.not_observed, rank.not_fused ?? {}].map((account) => Object.entries(account).sort())]);

/** @param {readonly RankInfo[]} ranks @returns {AgentGroup[]} */
export function agentGroups(ranks) {
  const groups = [...grouped(ranks, likeness).values()].map(groupOf);
  return groups.sort((a, b) => b.badness - a.badness || b.droppedCount - a.droppedCount || a.ranks[0] - b.ranks[0]);
}

/** @param {RankInfo[]} alike @returns {AgentGroup} */
function groupOf(alike) {
  const [first] = alike;
  const distinct = (/** @type {string[]} */ values) => [...new Set(values)].filter(Boolean);
  return {
    ranks: alike.map(({ rank }) => rank),
    state: first.state,
    hosts: distinct(alike.map(({ host }) => host)),
    devices: distinct(alike.map(({ device }) => device)),
    level: first.level,
    dropped: Object.keys(first.dropped).sort(),
    droppedCount: alike.reduce((sum, rank) => sum + total(rank.dropped), 0),
    faults: Object.keys(first.faults).sort(),
    notObserved: Object.keys(first.not_observed).length,
    notFused: Object.keys(first.not_fused ?? {}),
    badness: badness(first),
  };
}

/** @param {Record<string, unknown>} account */
const total = (account) => counts(account).reduce((sum, [, n]) => sum + n, 0);

/** @template T @param {readonly T[]} all @param {(one: T) => string} by @returns {Map<string, T[]>} */
function grouped(all, by) {
  /** @type {Map<string, T[]>} */
  const groups = new Map();
  for (const one of all) {
    const known = groups.get(by(one));
    if (known) known.push(one);
    else groups.set(by(one), [one]);
  }
  return groups;
}

/** What was lost, or where it failed, by reason: the most first. @param {readonly RankInfo[]} ranks @param {"dropped" | "faults"} account @returns {Dropped[]} */
export function totals(ranks, account) {
  const all = ranks.flatMap(({ rank, [account]: reasons }) => counts(reasons).map(([reason, n]) => ({ rank, reason, n })));
  const rows = [...grouped(all, ({ reason }) => reason)].map(([reason, each]) => {
    const worst = each.reduce((most, one) => (one.n > most.n ? one : most));
    return { reason, why: whyDropped(reason), total: each.reduce((sum, { n }) => sum + n, 0), ranks: each.map(({ rank }) => rank), worst: worst.rank, most: worst.n };
  });
  return rows.sort((a, b) => b.total - a.total || a.reason.localeCompare(b.reason, "en"));
}

/** Modules, or devices, with the reason of each, once for all ranks that report it: on the most ranks first. @param {readonly RankInfo[]} ranks @param {"not_observed" | "not_fused"} account @returns {Account[]} */
export function accounts(ranks, account) {
  const all = ranks.flatMap(({ rank, [account]: reasons }) => Object.entries(reasons ?? {}).map(([what, why]) => ({ rank, what, why: String(why) })));
  const groups = [...grouped(all, ({ what, why }) => JSON.stringify([what, why])).values()];
  return groups.map((each) => ({ what: each[0].what, why: each[0].why, ranks: each.map(({ rank }) => rank) })).sort((a, b) => b.ranks.length - a.ranks.length);
}

/** "ranks 0-3", or "1,024 ranks: 0-1023" where there are many. @param {readonly number[]} ranks */
export function ranksText(ranks) {
  const text = rankList(ranks);
  return ranks.length > 8 ? `${count(ranks.length)} ranks: ${clip(text.replace(/^ranks /, ""), 80)}` : text;
}

/** How many names an account of what is not observed has: of modules that were not read, and of parameters that no gradient has reached. @param {number} n */
export const unobservedText = (n) => plural(n, "module or parameter", "modules and parameters");

/** Whether any agent dropped, failed, records less or leaves out something. @param {readonly RankInfo[]} ranks */
export const hasTrouble = (ranks) => ranks.some((rank) => rank.level || [rank.dropped, rank.faults, rank.not_observed, rank.not_fused].some((account) => Object.keys(account ?? {}).length > 0));

/** The agents in a sentence. @param {readonly RankInfo[]} ranks @param {{time_s: number, share: number | null} | null} [usual] what it costs @returns {import("../../types.js").Verdict} */
export function agentVerdict(ranks, usual = null) {
  if (!ranks.length) return { level: "empty", parts: [["text", "No agent has attached."]], links: [] };
  const troubles = [failing(ranks), dropping(ranks), lowered(ranks)].filter(Boolean);
  const hidden = accounts(ranks, "not_observed").length;
  const unseen = hidden ? ` ${unobservedText(hidden)} ${hidden === 1 ? "is" : "are"} not observed.` : "";
  const cost = usual ? ` Agent overhead per step: ${seconds(usual.time_s)}${usual.share === null ? "" : ` (${percent(usual.share)})`}.` : "";
  const [level, text] = troubles.length ? ["warning", troubles.join(" ")] : ["ok", "Nothing was dropped, and no agent failed."];
  return { level, parts: [["text", `${text}${unseen}${cost}`]], links: [] };
}

/** @param {readonly RankInfo[]} ranks */
function failing(ranks) {
  const faults = totals(ranks, "faults");
  return faults.length ? `The agent failed in ${plural(faults.length, "place")}: ${clip(faults[0].reason, 60)} on ${ranksText(faults[0].ranks)}${faults.length > 1 ? " and others" : ""}.` : "";
}

/** @param {readonly RankInfo[]} ranks */
function dropping(ranks) {
  const drops = totals(ranks, "dropped");
  const all = drops.reduce((sum, { total: n }) => sum + n, 0);
  return drops.length ? `Dropped: ${plural(all, "record")}, most for ${clip(drops[0].reason, 60)}.` : "";
}

/** @param {readonly RankInfo[]} ranks */
function lowered(ranks) {
  const low = ranks.filter(({ level }) => level);
  return low.length ? `Not all is recorded on ${ranksText(low.map(({ rank }) => rank))}: ${clip(String(low[0].level), 120)}.` : "";
}
