// The collectives of one step as rows, for a file and for a table. Pure.

import { plural } from "./format.js";
import { MOST_ROWS } from "./figure_summary.js";
import { bytes, isKnown, time } from "./quantities.js";

/** @typedef {import("./call_timeline.js").Timeline} Timeline */

/** @param {Timeline} timeline */
const calls = ({ rows }) => rows.flatMap(({ rank, bars }) => bars.map(({ call }) => ({ rank, call })));

/** @param {import("./types.js").Call} call */
const desync = ({ is_desync: is }) => (is ? "not the same call on all ranks" : "");

/** @param {Timeline} timeline @returns {import("./csv.js").Rows} */
export function callRows(timeline) {
  const columns = ["rank", "group", "op", "sequence", "bytes", "dtype", "begin_s", "duration_s", "wait_s", "parameters", "state"];
  const rows = calls(timeline).map(({ rank, call }) => [
    rank, call.group, call.op, call.sequence, call.bytes, call.dtype, call.begin_s, call.duration_s, call.wait_s, call.parameters.join(" "),
    desync(call) || (isKnown(call.duration_s) ? "value" : "duration not known"),
  ]);
  return { columns, textColumns: ["group", "op", "dtype", "parameters", "state"], rows };
}

/** @param {Timeline} timeline @returns {import("./figure_summary.js").Summary} */
export function callSummary(timeline) {
  const all = calls(timeline);
  const rows = all.slice(0, MOST_ROWS).map(({ rank, call }) => [
    `rank ${rank}`, `${call.op} ${call.sequence} of ${call.group}`, bytes(call.bytes), time(call.begin_s), isKnown(call.duration_s) ? time(call.duration_s) : "not known", time(call.wait_s), desync(call),
  ]);
  const note = all.length > MOST_ROWS ? `${MOST_ROWS} of ${plural(all.length, "collective")}; the CSV file has all.` : "";
  return { columns: ["Rank", "Collective", "Size", "Begins", "Takes", "Of that waiting", "Note"], rows, note };
}
