// The result of the last `rangewatch linkcheck`: verdict, latency and bandwidth of each pair of ranks, and what went
// wrong.

import { createCellHeatmap } from "../../charts/cells/cell_heatmap.js";
import { el } from "../../format/dom.js";
import { age, clip, rankList } from "../../format/numbers.js";
import { bandwidth, bytes, isKnown, time } from "../../format/units.js";
import { createSortedTable } from "../../widgets/tables/sorted_table.js";
import { createVerdict } from "../../widgets/verdict.js";

/** @typedef {import("../../types.js").Linkcheck} Linkcheck */

/** Times worse than the median pair. Fixed, so that two checks compare by eye. */
const TIMES = { low: 1, high: 8, ticks: [1, 2, 4, 8], text: (/** @type {number} */ times) => (times === 1 ? "median" : times === 8 ? "8+ times worse" : `${times}`) };

/** @param {import("../../types.js").PageContext} ctx */
export function createLinkMatrix(ctx) {
  /** @type {Linkcheck | null} */
  let result = null;
  const heatmap = (/** @type {Measure} */ measure, /** @type {string} */ name, /** @type {string} */ title) =>
    createCellHeatmap({ name, title, scale: TIMES, unknown: "not tested", bad: "failed", square: true, readout: (_, spot) => (result ? linkText(result, measure, spot) : "") });
  const busbw = heatmap("busbw_bytes_per_s", "busbw", "busbw of each pair");
  const latency = heatmap("latency_s", "latency", "Latency of each pair");
  const verdict = createVerdict();
  verdict.element.dataset.testid = "link-verdict";
  const note = el("p", { class: "muted figure-notes" });
  const problems = createSortedTable(
    ctx,
    [
      { name: "Who", by: (/** @type {{who: string, where: string, what: string}} */ row) => row.who, show: (row) => row.who },
      { name: "Where", by: (row) => row.where, show: (row) => clip(row.where, 60) },
      { name: "What", show: (row) => el("span", { class: "breaks" }, clip(row.what, 400)) },
    ],
    { caption: "What went wrong", name: "link-problems", most: 100 },
  );
  const matrices = el("div", { class: "matrices" }, busbw.element, latency.element);
  const element = el("section", { class: "linkcheck", "data-testid": "linkcheck", hidden: true }, el("h2", {}, "Links between the ranks"), verdict.element, note, matrices, problems.element);
  let shown = "";

  return {
    element,
    /** @param {Linkcheck | null} posted @param {number} nowNs @param {import("../../charts/cells/picture.js").Whose} [whose] */
    update(posted, nowNs, whose) {
      element.hidden = posted === null;
      if (posted === null) return;
      const next = tidy(posted);
      verdict.update(linkVerdict(next, nowNs));
      problems.update(linkProblems(next)); // in another order, it may be
      const now = JSON.stringify(next);
      if (now === shown) return;
      shown = now;
      result = next;
      note.textContent = linkNote(next);
      matrices.hidden = !next.pairs?.length;
      busbw.update(linkGrid(next, "busbw_bytes_per_s"), linkSummary(next, "busbw_bytes_per_s"), linkSummary(next, "busbw_bytes_per_s"), whose);
      latency.update(linkGrid(next, "latency_s"), linkSummary(next, "latency_s"), linkSummary(next, "latency_s"), whose);
    },
    destroy() {
      busbw.destroy();
      latency.destroy();
    },
  };
}

// A result of `rangewatch linkcheck`, as text and as rank by rank. Whatever was posted: any of it may be missing.

/** @typedef {import("../../types.js").LinkPair} LinkPair */
/** @typedef {import("../../charts/cells/cell_grid.js").Grid} Grid */
/** @typedef {"latency_s" | "busbw_bytes_per_s"} Measure */

/** Ranks of a matrix at most: more posts claim than can be drawn. */
const MOST_RANKS = 2048;

/**
 * What was posted, less what cannot be: null is as good as missing, and a rank of a billion would be a matrix as large.
 * @param {Linkcheck} posted @returns {Linkcheck}
 */
export function tidy(posted) {
  const result = /** @type {Linkcheck} */ (Object.fromEntries(Object.entries(posted).filter(([, value]) => value !== null)));
  const isRank = (/** @type {number} */ rank) => Number.isInteger(rank) && rank >= 0 && rank < MOST_RANKS;
  if (result.world_size !== undefined && !isRank(result.world_size - 1)) delete result.world_size;
  if (result.pairs) result.pairs = result.pairs.filter((pair) => pair !== null && isRank(pair.a) && isRank(pair.b));
  return result;
}

/** @param {Linkcheck} result */
const size = ({ world_size: n, ranks = [], pairs = [] }) => n ?? pairs.reduce((most, { a, b }) => Math.max(most, a + 1, b + 1), ranks.length);

/** @param {Linkcheck} result @param {number} nowNs @returns {import("../../types.js").Verdict} */
export function linkVerdict(result, nowNs) {
  const when = `Checked ${age(nowNs - result.time_ns)}.`;
  if (result.ok) return { level: "ok", parts: [["text", `All ${size(result)} ranks and all links tested are fine. ${when}`]], links: [] };
  const parts = [
    result.bad_ranks?.length ? `bad: ${rankList(result.bad_ranks)}` : "",
    ...(result.bad_hosts ?? []).slice(0, 3).map(([a, b]) => `no pair of ranks between ${a} and ${b} works`),
    pairList("bad link", result.bad_pairs),
    pairList("slow link", result.slow_pairs),
    ...(result.bad_groups ?? []).slice(0, 3).map((ranks) => `${rankList(ranks)} fail together`),
    result.nccl_error ? `NCCL does not work, gloo was checked instead: ${result.nccl_error}` : "",
  ].filter(Boolean);
  return { level: "critical", parts: [["text", `The links are not all right: ${parts.join("; ") || "all ranks together failed"}. ${when}`]], links: [] };
}

/** @param {string} what @param {[number, number][]} [pairs] */
function pairList(what, pairs = []) {
  if (!pairs.length) return "";
  const named = pairs.slice(0, 4).map(([a, b]) => `${a}-${b}`).join(", ");
  return `${what}${pairs.length === 1 ? "" : "s"} ${named}${pairs.length > 4 ? ` and ${pairs.length - 4} more` : ""}`;
}

/** How it was measured. @param {Linkcheck} result */
export function linkNote({ backend, backend_reason: why, message_bytes: message, duration_s: took, pairs_left_out: left }) {
  const parts = [
    backend ? `by ${backend}${why ? ` (${why})` : ""}` : "",
    isKnown(message) ? `busbw of an all_reduce of ${bytes(message)}, latency of one of 8 B` : "",
    isKnown(took) ? `took ${time(took)}` : "",
    left ? `${left} pairs were left out of what was sent` : "",
  ];
  return parts.filter(Boolean).join("; ");
}

/** @param {LinkPair[]} pairs @param {Measure} measure */
function median(pairs, measure) {
  const known = pairs.map((pair) => pair[measure]).filter(isKnown).sort((a, b) => a - b);
  return known.length ? known[known.length >> 1] : null;
}

/**
 * Rank by rank; a cell is how many times worse than the median a pair is, which is alike for NVLink and for sockets.
 * @param {Linkcheck} result @param {Measure} measure @returns {Grid}
 */
export function linkGrid(result, measure) {
  const pairs = result.pairs ?? [];
  const names = Array.from({ length: size(result) }, (_, rank) => String(rank));
  const usual = median(pairs, measure);
  const byPlace = new Map(pairs.map((pair) => [pair.a * names.length + pair.b, pair]));
  const cell = (/** @type {number} */ a, /** @type {number} */ b) => {
    if (a === b) return "blank";
    const pair = byPlace.get(Math.min(a, b) * names.length + Math.max(a, b));
    if (!pair || pair.ok === null) return null;
    if (!pair.ok) return "bad";
    const value = pair[measure];
    if (!isKnown(value) || usual === null || value <= 0) return null;
    return measure === "latency_s" ? value / usual : usual / value;
  };
  return { rows: names, columns: names, cell };
}

/** Pairs by their ranks: a file asks for every one. @type {WeakMap<Linkcheck, Map<string, LinkPair>>} */
const places = new WeakMap();

/** @param {Linkcheck} result @param {number} a @param {number} b the greater */
function pairOf(result, a, b) {
  const known = places.get(result) ?? new Map((result.pairs ?? []).map((pair) => [`${pair.a} ${pair.b}`, pair]));
  places.set(result, known);
  return known.get(`${a} ${b}`);
}

/** @param {Linkcheck} result @param {Measure} measure @param {import("../../charts/cells/cell_grid.js").Spot} spot */
export function linkText(result, measure, { row, column }) {
  if (row === column) return `rank ${row} itself`;
  const pair = pairOf(result, Math.min(row, column), Math.max(row, column));
  const who = `ranks ${Math.min(row, column)} and ${Math.max(row, column)}`;
  if (!pair || pair.ok === null) return `${who}: not tested${pair?.error ? `, ${pair.error}` : ""}`;
  if (!pair.ok) return `${who}: failed, ${pair.error || "no reason given"}`;
  return `${who}: ${measure === "latency_s" ? time(pair.latency_s) : bandwidth(pair.busbw_bytes_per_s)}${pair.slow ? ", slow" : ""}`;
}

/** @param {Linkcheck} result @param {Measure} measure */
export function linkSummary({ pairs = [] }, measure) {
  const usual = median(pairs, measure);
  const failed = pairs.filter(({ ok }) => ok === false).length;
  return `${pairs.length} pairs, ${failed} failed; median ${measure === "latency_s" ? time(usual) : bandwidth(usual)}.`;
}

/** Pairs and ranks that did not go well, for the table. @param {Linkcheck} result */
export function linkProblems({ ranks = [], pairs = [], bad_pairs: bad = [], slow_pairs: slow = [] }) {
  const named = new Set([...bad, ...slow].map(([a, b]) => `${a}-${b}`));
  return [
    ...ranks.filter(({ ok }) => !ok).map(({ rank, host, fault, error }) => ({ who: `rank ${rank}`, where: host, what: [fault, error].filter(Boolean).join(": ") })),
    ...pairs.filter(({ a, b }) => named.has(`${a}-${b}`)).map(({ a, b, ok, error, latency_s: s, busbw_bytes_per_s: rate }) => ({
      who: `ranks ${a} and ${b}`,
      where: "link",
      what: ok ? `slow: ${time(s)}, ${bandwidth(rate)}` : error || "failed",
    })),
  ];
}
