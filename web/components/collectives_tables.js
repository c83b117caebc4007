// The collectives by group, op and size; and the ranks by what they cost the others.

import { clip, count } from "../format.js";
import { UNKNOWN, bandwidth, bytes, percent, time } from "../quantities.js";
import { el, link } from "../dom.js";
import { onward, runPath } from "../url_state.js";
import { createSortedTable } from "./sorted_table.js";

/** @typedef {import("../types.js").CollectivesRow} Row */
/** @typedef {import("../types.js").RankWaits} RankWaits */

const MOST_ROWS = 200;

/** @param {string} name @param {keyof Row} key @param {(value: number | null) => string} text @param {string} [help] @returns {import("./sorted_table.js").Column<Row>} */
const number = (name, key, text, help) => {
  const by = (/** @type {Row} */ row) => /** @type {number | null} */ (row[key] ?? null);
  return { name, by, show: (row) => text(by(row)), isNumber: true, help };
};

/** @param {import("../types.js").PageContext} ctx */
export const createCollectivesTable = (ctx) =>
  createSortedTable(
    ctx,
    [
      { name: "Group", by: (/** @type {Row} */ row) => row.group, show: (row) => el("span", { class: "name", title: row.group }, clip(row.group, 60)) },
      number("Ranks", "ranks", count),
      { name: "Op", by: (row) => row.op, show: (row) => clip(row.op, 60) },
      number("Size from", "size_class_bytes", bytes, "Sizes from this up to twice as much"),
      number("Count", "count", count),
      number("Time p50", "duration_p50_s", time),
      number("Time p99", "duration_p99_s", time),
      number("Time max", "duration_max_s", time),
      number("algbw", "algbw_bytes_per_s", bandwidth, "Bytes over the least duration of the ranks, as nccl-tests has it"),
      number("busbw", "busbw_bytes_per_s", bandwidth, "algbw by nccl-tests' factor for the op and the size of the group"),
      number("Wait p50", "wait_p50_s", time, "Duration less the least of the ranks"),
      number("Wait p99", "wait_p99_s", time),
    ],
    { caption: "By group, op and size", name: "collectives-table", most: MOST_ROWS },
  );

/** @typedef {RankWaits & {view: ReturnType<typeof onward>}} RankRow `view`: what its link takes along, so that it follows the shown steps */

/** @param {import("../types.js").PageContext} ctx */
export function createRankTable(ctx) {
  const table = createSortedTable(
    ctx,
    [
      { name: "Rank", by: (/** @type {RankRow} */ row) => row.rank, show: (row) => link(runPath(ctx.params.id, "gpu", { ...row.view, rank: row.rank }), {}, `rank ${row.rank}`), isNumber: true },
      { name: "Came last", by: (row) => row.last_share, show: (row) => percent(row.last_share), isNumber: true, help: "Share of the collectives in which one rank was clearly last" },
      { name: "Costs others a step", by: (row) => row.cost_to_others_s, show: (row) => time(row.cost_to_others_s), isNumber: true, help: "What all the others waited for it, added up" },
      { name: "Waits a step", by: (row) => row.wait_s, show: (row) => (row.wait_s === null ? UNKNOWN : time(row.wait_s)), isNumber: true },
    ],
    { caption: "By rank, means of these steps", name: "ranks-table", sortBy: "Costs others a step", most: 64 },
  );
  return {
    element: table.element,
    /** @param {readonly RankWaits[]} ranks */
    update: (ranks) => table.update(ranks.map((row) => ({ ...row, view: onward(ctx.state) }))),
  };
}
