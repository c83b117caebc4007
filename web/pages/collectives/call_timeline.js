// The collectives of one step as a timeline, a row for each rank. The light part of a bar is the wait for the last
// rank.

import { FOOT, LEGEND_HEIGHT, paintItems, paintName, paintTick } from "../../charts/cells/cell_painting.js";
import { paintState } from "../../charts/cells/patterns.js";
import { createPicture } from "../../charts/cells/picture.js";
import { labelledRows } from "../../charts/frame.js";
import { areaItem } from "../../charts/legend.js";
import { STATE } from "../../charts/statistics.js";
import { MOST_ROWS } from "../../charts/saving/rows.js";
import { el } from "../../format/dom.js";
import { count, plural } from "../../format/numbers.js";
import { bytes, isKnown, time } from "../../format/units.js";

/** @typedef {import("../../charts/cells/picture.js").Size} Size */

/** Pixels: a track of a row at most, all rows at most, names at the left. */
const TRACK = 14;
const MOST_HEIGHT = 420;
const TOP = 4;
const RIGHT = 12;
const ROW_LABEL = 14;
/** Pixels that the pointer may be off a bar, that the shortest bar has, and between two ticks. */
const REACH = 5;
const LEAST = 2;
const TICK_GAP = 90;

/** @param {Timeline} timeline @param {Size} size */
function areaOf({ rows }, { width, height }) {
  const left = width < 640 ? 72 : 84;
  return { left, top: TOP, width: Math.max(40, width - left - RIGHT), height: height - TOP - FOOT, row: (height - TOP - FOOT) / Math.max(1, rows.length) };
}

/** @param {Timeline} timeline @param {CallSpot} spot @param {Size} size */
function boxOf(timeline, { row, at }, size) {
  const area = areaOf(timeline, size);
  const bar = timeline.rows[row].bars[at];
  const track = (area.row - (area.row > 6 ? 2 : 0)) / timeline.tracks;
  const x = (/** @type {number} */ s) => area.left + (s / timeline.span_s) * area.width;
  const left = Math.min(x(bar.from_s), area.left + area.width - LEAST);
  return { left, top: area.top + row * area.row + bar.track * track, width: Math.max(LEAST, x(bar.to_s) - left), height: Math.max(1, track - (track > 5 ? 1 : 0)), waited: x(bar.waited_s) - left };
}

/** @param {CanvasRenderingContext2D} pen @param {Timeline} timeline @param {Size} size @param {import("../../charts/theme.js").Palette} palette */
function paint(pen, timeline, size, palette) {
  const area = areaOf(timeline, size);
  for (const [row, { bars }] of timeline.rows.entries()) {
    for (const [at, { call }] of bars.entries()) {
      const box = boxOf(timeline, { row, at }, size);
      if (call.duration_s === null) {
        paintState(pen, { ...box, width: Math.max(box.width, 8) }, STATE.notObserved, palette);
        continue;
      }
      pen.fillStyle = call.is_desync ? palette.bad : palette.accent;
      pen.globalAlpha = 0.28;
      pen.fillRect(box.left, box.top, box.width, box.height);
      pen.globalAlpha = 1;
      pen.fillRect(box.left + Math.max(0, Math.min(box.waited, box.width - LEAST)), box.top, Math.max(LEAST, box.width - Math.max(0, box.waited)), box.height);
    }
  }
  for (const row of labelledRows(timeline.rows.length, area.height, ROW_LABEL)) {
    paintName(pen, timeline.rows[row].name, area.left - 6, area.top + (row + 0.5) * area.row, palette);
  }
  for (const at_s of ticks(timeline.span_s, Math.max(2, Math.floor(area.width / TICK_GAP)))) {
    const x = area.left + (at_s / timeline.span_s) * area.width;
    paintTick(pen, time(at_s), Math.min(x, area.left + area.width - 14), area.top + area.height + FOOT / 2 + 2, palette);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {import("../../charts/theme.js").Palette} palette */
function paintLegend(pen, palette) {
  const bar = (/** @type {number} */ alpha) => (/** @type {import("../../charts/cells/cell_grid.js").Area} */ { left, top, width, height }) => {
    pen.fillStyle = palette.accent;
    pen.globalAlpha = alpha;
    pen.fillRect(left, top, width, height);
    pen.globalAlpha = 1;
  };
  const items = { "waiting for the last rank": bar(0.28), communicating: bar(1), "duration not known": (/** @type {import("../../charts/cells/cell_grid.js").Area} */ box) => paintState(pen, box, STATE.notObserved, palette) };
  paintItems(pen, 12, items, palette);
}

export function createCallLanes() {
  const legend = el("div", { class: "legend" }, areaItem("wait", "waiting for the last rank"), areaItem("work", "communicating"), areaItem("unknown", "duration not known"));
  return createPicture(
    {
      name: "step-collectives",
      title: "Collectives of one step",
      height: (/** @type {Timeline} */ { rows, tracks }) => TOP + FOOT + Math.max(24, Math.min(MOST_HEIGHT, rows.length * (tracks * TRACK + 2))),
      paint,
      spotAt(timeline, x, y, size) {
        const area = areaOf(timeline, size);
        const row = Math.floor((y - area.top) / area.row);
        const track = Math.floor((((y - area.top) / area.row) % 1) * timeline.tracks);
        const at_s = ((x - area.left) / area.width) * timeline.span_s;
        return barAt(timeline, row, at_s, (REACH / area.width) * timeline.span_s, timeline.tracks > 1 ? track : undefined);
      },
      moved: movedCall,
      has: ({ rows }, { row, at }) => rows[row]?.bars[at] !== undefined,
      boxOf,
      readout: callText,
      rows: callRows,
      summary: callSummary,
      legend: { height: LEGEND_HEIGHT, paint: paintLegend },
      keys: "Left and right arrows move from one collective to the next, up and down to other ranks.",
    },
    legend,
  );
}

// One step's collectives as bars, a row a rank. Each rank begins at its own first one: clocks of hosts are not compared.

/** @typedef {import("../../types.js").StepCalls} StepCalls */
/** @typedef {import("../../types.js").Call} Call */
/** @typedef {{row: number, at: number}} CallSpot */
/**
 * @typedef {object} Bar
 * @property {Call} call
 * @property {number} track of its row, for those that overlap
 * @property {number} from_s
 * @property {number} waited_s where the waiting part ends
 * @property {number} to_s the same as from_s where the duration is not known
 */
/** @typedef {{rank: number, name: string, bars: Bar[]}} Row `name`: of the rank, or of many that one stands for */
/** @typedef {{rows: Row[], tracks: number, span_s: number}} Timeline */

/** Bars that overlap lie in so many tracks of a row at most; with many ranks there is room for one. */
const MOST_TRACKS = 4;
const MANY_RANKS = 24;

/** @param {StepCalls} answer @param {number | null} [pin] a rank that has a row in any case @returns {Timeline} */
export function timelineOf({ ranks: all }, pin = null) {
  const ranks = all.length > MANY_RANKS ? fewRows(all, pin) : all.map((one) => ({ ...one, name: `rank ${one.rank}` }));
  const rows = ranks.map(({ rank, name, collectives }) => ({ rank, name, bars: barsOf(collectives, MOST_TRACKS) }));
  const bars = rows.flatMap((row) => row.bars);
  return {
    rows,
    tracks: bars.reduce((tracks, bar) => Math.max(tracks, bar.track + 1), 1),
    span_s: bars.reduce((span, bar) => Math.max(span, bar.to_s), 0) || 1e-6,
  };
}

/** Seconds that are no difference, how many spreads one must be off, and rows at most besides that of all the others. */
const FLOOR_S = 0.2e-3;
const SPREADS = 6;
const MOST_ODD = 8;

/** Of many ranks those that waited clearly less or more than most, and the pinned one; for all others the one with their median wait. @param {readonly import("../../types.js").RankCalls[]} all @param {number | null} pin */
function fewRows(all, pin) {
  const waits = all.map((one) => ({ one, wait: one.collectives.reduce((sum, { wait_s: s }) => sum + (isKnown(s) ? s : 0), 0) })).sort((a, b) => a.wait - b.wait);
  const median = waits[waits.length >> 1].wait;
  const distances = waits.map(({ wait }) => Math.abs(wait - median)).sort((a, b) => a - b);
  const least = SPREADS * Math.max(1.4826 * distances[distances.length >> 1], FLOOR_S);
  const odd = waits.filter(({ wait }) => Math.abs(wait - median) >= least).sort((a, b) => Math.abs(b.wait - median) - Math.abs(a.wait - median)).slice(0, MOST_ODD);
  const own = waits.filter((each) => odd.includes(each) || each.one.rank === pin);
  const others = waits.filter((each) => !own.includes(each));
  const typical = others[others.length >> 1];
  const rows = own.map(({ one }) => ({ ...one, name: `rank ${one.rank}` })).sort((a, b) => a.rank - b.rank);
  return typical ? [...rows, { ...typical.one, name: `${count(others.length)} ${own.length ? "others" : "ranks"}` }] : rows;
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
  let nearest = -1;
  let best = reach_s;
  for (const [i, bar] of (rows[row]?.bars ?? []).entries()) {
    if (track !== undefined && bar.track !== track) continue;
    const off = Math.max(0, bar.from_s - at_s, at_s - bar.to_s);
    if (off <= best) [nearest, best] = [i, off];
    if (off === 0) break;
  }
  return nearest < 0 ? null : { row, at: nearest };
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
  const { rank, name, bars } = rows[row];
  return `${name}${name === `rank ${rank}` ? "" : `, rank ${rank} as their median`}: ${describeCall(bars[at].call)}`;
}

/** @param {Call} call */
function describeCall(call) {
  const size = [bytes(call.bytes), call.dtype].filter(Boolean).join(" ");
  const took = isKnown(call.duration_s) ? `${time(call.duration_s)}, of that ${time(call.wait_s)} waiting` : "duration not known";
  const names = call.parameters.length ? `, ${call.parameters[0]}${call.parameters.length > 1 ? ` and ${call.parameters.length - 1} more` : ""}` : "";
  return `${call.op} ${call.sequence} of ${call.group} (${size}), ${took}${names}${call.is_desync ? ", ranks disagree" : ""}`;
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

// The collectives of one step as rows, for a file and for a table.

/** @param {Timeline} timeline */
const calls = ({ rows }) => rows.flatMap(({ rank, bars }) => bars.map(({ call }) => ({ rank, call })));

/** @param {import("../../types.js").Call} call */
const desync = ({ is_desync: is }) => (is ? "ranks disagree" : "");

/** @param {Timeline} timeline @returns {import("../../charts/saving/files.js").Rows} */
export function callRows(timeline) {
  const columns = ["rank", "group", "op", "sequence", "bytes", "dtype", "begin_s", "duration_s", "wait_s", "parameters", "state"];
  const rows = calls(timeline).map(({ rank, call }) => [
    rank, call.group, call.op, call.sequence, call.bytes, call.dtype, call.begin_s, call.duration_s, call.wait_s, call.parameters.join(" "),
    desync(call) || (isKnown(call.duration_s) ? "value" : "duration not known"),
  ]);
  return { columns, rows };
}

/** @param {Timeline} timeline @returns {import("../../charts/saving/rows.js").Summary} */
export function callSummary(timeline) {
  const all = calls(timeline);
  const rows = all.slice(0, MOST_ROWS).map(({ rank, call }) => [
    `rank ${rank}`, `${call.op} ${call.sequence} of ${call.group}`, bytes(call.bytes), time(call.begin_s), isKnown(call.duration_s) ? time(call.duration_s) : "not known", time(call.wait_s), desync(call),
  ]);
  const note = all.length > MOST_ROWS ? `${MOST_ROWS} of ${plural(all.length, "collective")}; the CSV file has all.` : "";
  return { columns: ["Rank", "Collective", "Size", "Begins", "Takes", "Of that waiting", "Note"], rows, note };
}
