// What the collectives of a run amount to, in words. Pure.

import { capital, clip, count, rankList } from "./format.js";
import { percent, time } from "./quantities.js";
import { onward, runPath } from "./url_state.js";

/** @typedef {import("./types.js").Collectives} Collectives */
/** @typedef {import("./types.js").TimingSource} TimingSource */

/** Ranks of a late host that are linked to. */
const MOST_LINKS = 8;

/** How a rank times its collectives, best first. @type {Record<string, string>} */
const RUNGS = {
  hooks: "hooks of the process groups, each collective from call to end",
  flight_recorder: "torch's flight recorder, read now and then",
  ddp: "DDP's communication hook, each bucket of gradients",
  wrapped: "the wrapped calls of torch.distributed",
  step_level: "only whole steps; no single collective is timed",
  hidden: "hidden under CUDA graphs: these collectives happen, and cannot be timed",
};

/** The page's first sentence. @param {Collectives} answer @param {string} run @param {Parameters<typeof onward>[0]} [state] @returns {import("./types.js").Verdict} */
export function waitVerdict({ verdict, why_no_verdict: why, table }, run, state = {}) {
  if (!verdict) return { level: table.length ? "ok" : "empty", parts: [["text", why ?? "Nobody stands out."]], links: [] };
  const { rank, ranks = [], text } = verdict;
  const late = rank === null ? ranks.slice(0, MOST_LINKS) : [rank];
  const links = late.flatMap((one) => [
    { label: `GPU of rank ${one}`, path: runPath(run, "gpu", onward(state, { rank: one })) },
    ...(rank === null ? [] : [{ label: `Layers of rank ${one}`, path: runPath(run, "layers", onward(state, { rank: one })) }]),
  ]);
  return { level: "warning", parts: [["text", text]], links };
}

/** @param {import("./types.js").WaitVerdict} verdict */
function waitedFor({ rank, host = null }) {
  if (rank !== null) return `rank ${rank}`;
  return host === null ? "nobody" : clip(`host ${host}`, 60);
}

/** @param {Collectives} answer @returns {import("./components/cards.js").Card[]} */
export function waitCards({ verdict, coverage, table, start, stop }) {
  if (!table.length) return [];
  const timed = table.reduce((sum, row) => sum + row.count, 0);
  const found = verdict
    ? [
        { title: "Waited for", value: waitedFor(verdict), under: verdict.class, level: "warning" },
        { title: "Where", value: verdict.where, under: `since step ${count(verdict.since_step)}` },
        { title: "Costs a step", value: time(verdict.cost_s), under: `it cost most in ${percent(verdict.share)} of steps` },
      ]
    : [{ title: "Waited for", value: "nobody", under: "no rank stands out" }];
  return [...found, { title: "Collectives", value: count(timed), under: `${percent(coverage)} with a known duration; steps ${count(start)}-${count(stop - 1)}` }];
}

/** One line for each way of timing, with the ranks that use it. @param {readonly TimingSource[]} sources @returns {string[]} */
export function sourceLines(sources) {
  /** @type {Map<string, number[]>} */
  const ranks = new Map();
  for (const { rank, rung, why } of sources) {
    const known = Object.hasOwn(RUNGS, rung) ? RUNGS[rung] : rung;
    const line = [known, why].filter(Boolean).join(". Why: ");
    ranks.set(line, [...(ranks.get(line) ?? []), rank]);
  }
  return [...ranks].map(([line, mine]) => `${capital(rankList(mine))}: ${line}`);
}

/** @param {Record<string, number>} leftOut by op */
export function leftOutLine(leftOut) {
  const parts = Object.entries(leftOut).filter(([, n]) => n > 0).map(([op, n]) => `${op} (${count(n)})`);
  return parts.length ? `Left out of the waits: ${parts.join(", ")}. Rooted and point-to-point ops do not end together, and what is not known on all ranks cannot be compared, so these say nothing of who is late.` : "";
}

/** Why there is no collective here. @param {readonly TimingSource[]} sources @returns {string[]} */
export function whyNone(sources) {
  if (!sources.length) return ["No rank has said how it would time its collectives: either it is one process alone, or its agent does not record them. They are timed from torch.distributed's process groups once those are made."];
  return ["This is how the ranks time them:", ...sourceLines(sources)];
}

/** Rank by step. @param {Collectives} answer @returns {import("./cell_grid.js").Grid} */
export const costGrid = ({ ranks, steps, cost_to_others_s: cost }) => ({
  rows: ranks.map((rank) => `rank ${rank}`),
  columns: steps.map((step) => count(step)),
  cell: (row, column) => cost[row]?.[column] ?? null,
});

/** @param {Collectives} answer @param {import("./cell_grid.js").Spot} spot */
export function costText({ ranks, steps, cost_to_others_s: cost, wait_s: wait }, { row, column }) {
  const value = cost[row]?.[column] ?? null;
  const own = wait[row]?.[column] ?? null;
  return `rank ${ranks[row]}, step ${count(steps[column])}: cost the others ${time(value)}, waited ${time(own)} itself`;
}

/** One line for who cannot see the heatmap. @param {Collectives} answer */
export function costSummary({ by_rank: ranks, steps }) {
  const known = ranks.filter((rank) => rank.cost_to_others_s !== null);
  if (!known.length || !steps.length) return "Nothing is known.";
  const most = known.reduce((a, b) => (Number(b.cost_to_others_s) > Number(a.cost_to_others_s) ? b : a));
  return `Steps ${count(steps[0])} to ${count(steps[steps.length - 1])}; rank ${most.rank} costs the others most, ${time(most.cost_to_others_s)} a step.`;
}
