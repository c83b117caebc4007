// What a reader must know is missing: ranks, records, modules. Hidden is shown as hidden. Pure.

import { count, duration, plural, rankList } from "./format.js";

/** @typedef {import("./types.js").Run} Run */
/** @typedef {import("./types.js").RankInfo} RankInfo */

/** @param {Pick<Run, "ranks" | "missing_ranks">} run @param {number} nowNs @returns {string[]} */
export function rankNotes(run, nowNs) {
  return [...missing(run.missing_ranks), ...failed(run.ranks), ...silent(run.ranks, nowNs), ...doubled(run.ranks), ...faults(run.ranks), ...dropped(run.ranks), ...lowered(run.ranks), ...slower(run.ranks), ...unobserved(run.ranks)];
}

/** @param {number[]} ranks */
function missing(ranks) {
  return ranks.length ? [`${rankList(ranks)} ${ranks.length === 1 ? "has" : "have"} not reported`] : [];
}

/** What the training said as it ended, in its first line. @param {RankInfo[]} ranks */
function failed(ranks) {
  return ranks.filter((rank) => rank.failure).map((rank) => `rank ${rank.rank} failed: ${firstLine(String(rank.failure))}`);
}

/** @param {string} text */
const firstLine = (text) => text.trim().split("\n", 1)[0];

/** @param {RankInfo[]} ranks @param {number} nowNs */
function silent(ranks, nowNs) {
  return ranks
    .filter((rank) => rank.state === "stale")
    .map((rank) => `rank ${rank.rank} silent for ${duration(nowNs - rank.last_seen_ns)}, after ${rank.last_step === null ? "no step" : `step ${count(rank.last_step)}`}`);
}

/** Two jobs of one name, or a restart whose first process has not gone yet. @param {RankInfo[]} ranks */
function doubled(ranks) {
  return ranks
    .filter((rank) => rank.also_live)
    .map((rank) => `${rank.also_live === 1 ? "another process also sends" : `${count(rank.also_live)} other processes also send`} as rank ${rank.rank}: are there two jobs of one name?`);
}

/** @param {RankInfo[]} ranks */
function dropped(ranks) {
  return ranks.flatMap((rank) =>
    Object.entries(rank.dropped).map(([reason, n]) => `rank ${rank.rank} dropped ${plural(Number(n), "record")}: ${reason}`),
  );
}

/** What the agent records less of, to keep to its budget. @param {RankInfo[]} ranks */
function lowered(ranks) {
  return ranks.filter((rank) => rank.level).map((rank) => `rank ${rank.rank} records less: ${rank.level}`);
}

/** Where the fused kernel is not in use. @param {RankInfo[]} ranks */
function slower(ranks) {
  return ranks.flatMap((rank) => Object.entries(rank.not_fused ?? {}).map(([device, why]) => `rank ${rank.rank} reads ${device} more slowly than it could: ${why}`));
}

/** @param {RankInfo[]} ranks */
function faults(ranks) {
  return ranks.flatMap((rank) =>
    Object.entries(rank.faults).map(([place, what]) => `rank ${rank.rank}: the agent failed in ${place} (${typeof what === "number" ? plural(what, "time") : String(what)})`),
  );
}

/** One line for a module however many ranks miss it. @param {RankInfo[]} ranks */
function unobserved(ranks) {
  /** @type {Map<string, number[]>} */
  const found = new Map();
  for (const rank of ranks) {
    for (const [module, why] of Object.entries(rank.not_observed)) {
      const line = `${module || "(the model)"} is not observed (${why})`;
      found.set(line, [...(found.get(line) ?? []), rank.rank]);
    }
  }
  return [...found].map(([line, on]) => `${line} on ${on.length === ranks.length && on.length > 1 ? "all ranks" : rankList(on)}`);
}
