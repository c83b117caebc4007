// One step's collectives as bars, a row a rank. Each rank begins at its own first one: clocks of hosts are not compared. Pure.

import { bytes, isKnown, time } from "./quantities.js";

/** @typedef {import("./types.js").StepCalls} StepCalls */
/** @typedef {import("./types.js").Call} Call */
/** @typedef {{row: number, at: number}} CallSpot */
/**
 * @typedef {object} Bar
 * @property {Call} call
 * @property {number} track of its row, for those that overlap
 * @property {number} from_s
 * @property {number} waited_s where the waiting part ends
 * @property {number} to_s the same as from_s where the duration is not known
 */
/** @typedef {{rank: number, bars: Bar[]}} Row */
/** @typedef {{rows: Row[], tracks: number, span_s: number}} Timeline */

/** Bars that overlap lie in so many tracks of a row at most; with many ranks there is room for one. */
const MOST_TRACKS = 4;
const MANY_RANKS = 24;

/** @param {StepCalls} answer @returns {Timeline} */
export function timelineOf({ ranks }) {
  const most = ranks.length > MANY_RANKS ? 1 : MOST_TRACKS;
  const rows = ranks.map(({ rank, collectives }) => ({ rank, bars: barsOf(collectives, most) }));
  const bars = rows.flatMap((row) => row.bars);
  return {
    rows,
    tracks: bars.reduce((tracks, bar) => Math.max(tracks, bar.track + 1), 1),
    span_s: bars.reduce((span, bar) => Math.max(span, bar.to_s), 0) || 1e-6,
  };
}

/** @param {readonly Call[]} calls in order of their begin @param {number} most @returns {Bar[]} */
function barsOf(calls, most) {
  /** @type {number[]} */
  const ends = [];
  return calls.map((call) => {
    const from_s = call.begin_s;
    const to_s = from_s + (isKnown(call.duration_s) ? call.duration_s : 0);
    const free = ends.findIndex((end) => end <= from_s);
    const track = free >= 0 ? free : Math.min(ends.length, most - 1);
    ends[track] = Math.max(ends[track] ?? 0, to_s);
    return { call, track, from_s, to_s, waited_s: Math.min(to_s, from_s + (isKnown(call.wait_s) ? call.wait_s : 0)) };
  });
}

/** The bar under a place: the one that holds it, else the nearest within reach. @param {Timeline} timeline @param {number} row @param {number} at_s @param {number} reach_s @param {number} [track] @returns {CallSpot | null} */
export function barAt({ rows }, row, at_s, reach_s, track) {
  let found = -1;
  let best = reach_s;
  for (const [i, bar] of (rows[row]?.bars ?? []).entries()) {
    if (track !== undefined && bar.track !== track) continue;
    const off = Math.max(0, bar.from_s - at_s, at_s - bar.to_s);
    if (off <= best) [found, best] = [i, off];
    if (off === 0) break;
  }
  return found < 0 ? null : { row, at: found };
}

/** @param {Timeline} timeline @param {CallSpot | null} spot @param {string} key @returns {CallSpot | null} */
export function movedCall({ rows }, spot, key) {
  if (!/^Arrow(Left|Right|Up|Down)$/.test(key)) return null;
  const from = spot ?? { row: 0, at: key === "ArrowLeft" ? Infinity : -1 };
  const down = key === "ArrowDown" ? 1 : key === "ArrowUp" ? -1 : 0;
  const across = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0;
  let row = from.row + down;
  while (rows[row] && !rows[row].bars.length) row += down || 1;
  if (!rows[row]) return spot;
  return { row, at: Math.max(0, Math.min(rows[row].bars.length - 1, from.at + across)) };
}

/** @param {Timeline} timeline @param {CallSpot} spot */
export function callText({ rows }, { row, at }) {
  const { rank, bars } = rows[row];
  return `rank ${rank}: ${callWords(bars[at].call)}`;
}

/** @param {Call} call */
export function callWords(call) {
  const size = [bytes(call.bytes), call.dtype].filter(Boolean).join(" ");
  const took = isKnown(call.duration_s) ? `${time(call.duration_s)}, of that ${time(call.wait_s)} waiting` : "duration not known";
  const names = call.parameters.length ? `, ${call.parameters[0]}${call.parameters.length > 1 ? ` and ${call.parameters.length - 1} more` : ""}` : "";
  return `${call.op} ${call.sequence} of ${call.group} (${size}), ${took}${names}${call.is_desync ? ", not the same call on all ranks" : ""}`;
}

/** Round times for the axis, at most so many. @param {number} span_s @param {number} most @returns {number[]} */
export function ticks(span_s, most) {
  const size = 10 ** Math.floor(Math.log10(span_s / most));
  const step = [1, 2, 5, 10].map((times) => times * size).find((one) => span_s / one <= most) ?? 10 * size;
  return Array.from({ length: Math.floor(span_s / step + 1e-9) + 1 }, (_, i) => i * step);
}

/** One line for who cannot see the picture. @param {Timeline} timeline */
export function timelineSummary({ rows, span_s }) {
  const calls = rows.reduce((sum, row) => sum + row.bars.length, 0);
  return `${calls} collectives on ${rows.length} ranks within ${time(span_s)}.`;
}
