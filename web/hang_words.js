// A run that does not advance, in words. Pure.

import { count, duration, rankList } from "./format.js";
import { UNKNOWN, bytes, isKnown, quantity, time } from "./quantities.js";

/** @typedef {import("./types.js").Hang} Hang */
/** @typedef {import("./types.js").HangRank} HangRank */
/** @typedef {import("./types.js").HangGroup} HangGroup */

/** Causes as a reader would say them. @type {Record<string, string>} */
const CAUSES = {
  mismatch: "ranks call different things",
  silent: "silent ranks",
  ended: "ranks that ended",
  "data loader": "the data loader",
  absent: "ranks elsewhere in their code",
  order: "collectives in another order",
  communication: "the communication itself",
  busy: "nobody waits in a collective",
};

/** Where nobody is known to wait it may be an evaluation. @param {Hang} hang @returns {import("./types.js").Verdict} */
export const hangVerdict = ({ text, kind }) => ({ level: kind === "busy" ? "warning" : "overflow", parts: [["text", text]], links: [] });

/** @param {Hang} hang @param {number} checkedNs @returns {import("./components/cards.js").Card[]} */
export function hangCards({ kind, class: wider, since_ns: since, step, missing, silent, waiting }, checkedNs) {
  return [
    { title: "Cause", value: CAUSES[kind] ?? kind, under: wider ?? " " },
    { title: "Nothing advances for", value: since === null ? UNKNOWN : duration(checkedNs - since), under: step === null ? "no step yet" : `at step ${count(step)}` },
    { title: "Missing", value: listed(missing), level: missing.length ? "overflow" : undefined },
    { title: "Silent", value: listed(silent), level: silent.length ? "overflow" : undefined },
    { title: "Waiting", value: listed(waiting) },
  ];
}

/** @param {readonly number[]} ranks */
const listed = (ranks) => (ranks.length ? rankList(ranks) : "none");

/** What a group's ranks wait for. @param {HangGroup} group */
export function groupCaption({ group, op, bytes: size, dtype, sequence, ranks }) {
  const call = op ? `${op} of ${[bytes(size), dtype].filter(Boolean).join(" ")}` : "its collectives";
  return `${group}, ${ranks.length} ranks: ${call}${sequence === null ? "" : `, sequence ${count(sequence)}`}`;
}

/** Ranks of a group that stand at the same place make one row, those who are missing first. @param {HangGroup} group @param {readonly number[]} odd who has called something else */
export function sequenceRows({ ranks, last_enqueued: enqueued, last_completed: completed, missing, sequence }, odd) {
  /** @type {Map<string, {ranks: number[], enqueued: number | null, completed: number | null, isMissing: boolean, isOdd: boolean, has: "yes" | "no" | "n/a"}>} */
  const rows = new Map();
  for (const rank of ranks) {
    const [called, ended] = [enqueued[rank] ?? null, completed[rank] ?? null];
    const isMissing = missing.includes(rank);
    const has = called === null || sequence === null ? UNKNOWN : called >= sequence ? "yes" : "no";
    const isOdd = odd.includes(rank);
    const key = JSON.stringify([called, ended, isMissing, isOdd]);
    const row = rows.get(key) ?? { ranks: [], enqueued: called, completed: ended, isMissing, isOdd, has: /** @type {"yes" | "no" | "n/a"} */ (has) };
    row.ranks.push(rank);
    rows.set(key, row);
  }
  return [...rows.values()].sort((a, b) => Number(b.isMissing || b.isOdd) - Number(a.isMissing || a.isOdd) || (a.enqueued ?? -1) - (b.enqueued ?? -1));
}

/** The line of code, as editors open it. @param {import("./types.js").CodeLine | null} where */
export const whereText = (where) => (where ? `${where.file}:${where.line} in ${where.function}` : "");

/** Who has called something else than most. @param {Hang} hang @returns {number[]} */
export const oddRanks = ({ kind, culprits = [] }) => (kind === "mismatch" ? culprits : []);

/** What a rank is doing, as far as it is known. @param {HangRank} rank @param {string} cause */
export function rankState({ role, is_silent: isSilent, has_ended: hasEnded, is_in_data_loader: loads, silent_s: silent, last_step: step, waits_for: call }, cause) {
  const parts = [
    hasEnded ? "ended" : isSilent ? `silent for ${time(silent)}` : "",
    role === "missing" ? (cause === "mismatch" ? "calls something else" : "missing") : role === "waiting" ? "waiting" : "",
    call ? `in ${call.op} ${call.sequence} (${[bytes(call.bytes), call.dtype].filter(Boolean).join(" ")})` : "",
    loads ? "in its data loader" : "",
    step >= 0 ? `at step ${count(step)}` : "before its first step",
  ];
  return parts.filter(Boolean).join(", ");
}

/** @param {Record<string, number | null> | null} values */
export function gpuLine(values) {
  if (!values) return "";
  if (values.present === 0) return "its GPU does not answer";
  const shown = [["busy", "utilization_gpu_percent"], ["power", "power_w"], ["chip", "temperature_c"], ["memory used", "memory_used_bytes"]];
  const known = shown.filter(([, column]) => isKnown(values[column]));
  return known.length ? `GPU: ${known.map(([name, column]) => `${name} ${quantity(column, values[column])}`).join(", ")}` : "";
}

/** Missing ranks first, then those who wait; ranks without a word to say are left to the count. @param {readonly HangRank[]} ranks */
export function rankOrder(ranks) {
  const weight = (/** @type {HangRank} */ { role, stacks }) => (role === "missing" ? 0 : role === "waiting" ? 2 : 4) + (stacks ? 0 : 1);
  return [...ranks].sort((a, b) => weight(a) - weight(b) || a.rank - b.rank);
}
