// The collectives of one step across ranks, as bars: the light part of a bar is waiting for the last rank.

import { callRows, callSummary } from "../call_rows.js";
import { barAt, callText, movedCall, ticks } from "../call_timeline.js";
import { FOOT, hatched, paintName, paintTick } from "../cell_painting.js";
import { el } from "../dom.js";
import { LEGEND_HEIGHT, paintItems } from "../legend_painting.js";
import { time } from "../quantities.js";
import { labelledRows } from "../state_geometry.js";
import { createPicture } from "./picture.js";

/** @typedef {import("../call_timeline.js").Timeline} Timeline */
/** @typedef {import("../call_timeline.js").CallSpot} CallSpot */
/** @typedef {import("./picture.js").Size} Size */

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
  const left = width < 640 ? 64 : 84;
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

/** @param {CanvasRenderingContext2D} pen @param {Timeline} timeline @param {Size} size @param {import("../theme.js").Palette} palette */
function paint(pen, timeline, size, palette) {
  const area = areaOf(timeline, size);
  for (const [row, { bars }] of timeline.rows.entries()) {
    for (const [at, { call }] of bars.entries()) {
      const box = boxOf(timeline, { row, at }, size);
      if (call.duration_s === null) {
        hatched(pen, { ...box, width: Math.max(box.width, 8) }, palette.hatch);
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
    paintName(pen, `rank ${timeline.rows[row].rank}`, area.left - 6, area.top + (row + 0.5) * area.row, palette);
  }
  for (const at_s of ticks(timeline.span_s, Math.max(2, Math.floor(area.width / TICK_GAP)))) {
    const x = area.left + (at_s / timeline.span_s) * area.width;
    paintTick(pen, time(at_s), Math.min(x, area.left + area.width - 14), area.top + area.height + FOOT / 2 + 2, palette);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {import("../theme.js").Palette} palette */
function paintLegend(pen, palette) {
  const bar = (/** @type {number} */ alpha) => (/** @type {import("../cell_grid.js").Area} */ { left, top, width, height }) => {
    pen.fillStyle = palette.accent;
    pen.globalAlpha = alpha;
    pen.fillRect(left, top, width, height);
    pen.globalAlpha = 1;
  };
  const items = { "waiting for the last rank": bar(0.28), communicating: bar(1), "duration not known": (/** @type {import("../cell_grid.js").Area} */ box) => hatched(pen, box, palette.hatch) };
  paintItems(pen, 12, items, palette);
}

export function createCallLanes() {
  const item = (/** @type {string} */ look, /** @type {string} */ text) => el("span", { class: "legend-item" }, el("span", { class: "swatch", "data-look": look, "aria-hidden": "true" }), text);
  const legend = el("div", { class: "legend" }, item("wait", "waiting for the last rank"), item("work", "communicating"), item("unknown", "duration not known"));
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
      say: callText,
      rows: callRows,
      summary: callSummary,
      legend: { height: LEGEND_HEIGHT, paint: paintLegend },
      keys: "Left and right arrows move from one collective to the next, up and down to other ranks.",
    },
    legend,
  );
}
