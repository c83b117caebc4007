// When a card was slowed down, and why: a band a reason; and what was said of it: a mark an event.

import { layoutOf } from "../figure_drawing.js";
import { bitBands, placeOfEvent } from "../gpu_series.js";
import { bitNames } from "../gpu_words.js";
import { escapePlotText } from "../plot_text.js";

/** @typedef {import("../gpu_series.js").PlacedLanes} PlacedLanes */
/** @typedef {import("../types.js").GpuEvent} GpuEvent */
/** @typedef {{from: number, to: number}} Span */
/** @typedef {{name: string, bands: (Span & {look?: "warning" | "calm" | "bad"})[], marks: {at: number, text: string}[], isCalm: boolean, known?: Span[]}} BandRow `known`: where there are samples at all, if that is drawn */
/** @typedef {{rows: BandRow[], dx: number, meta: {steps_per_column: number}, isKnown: boolean}} BandModel */

const ROW = 16;
const LEAST_WIDTH = 3;
/** Reasons that are part of normal work under load. */
export const CALM = 0x4;

/** @param {PlacedLanes} lanes @param {Record<string, string>} names of the bits, where the agent sent none */
export function throttleModel(lanes, names) {
  const known = { ...names, ...lanes.about.names?.throttle_reasons };
  const rows = [...bitBands(lanes, "throttle_reasons")].map(([bit, bands]) => ({
    name: bitNames(bit, known)[0] ?? `bit ${bit}`,
    bands,
    marks: [],
    isCalm: bit === CALM,
  }));
  return { rows, dx: 1, meta: { steps_per_column: 1 }, isKnown: (lanes.values.throttle_reasons ?? []).some((value) => value !== null) };
}

/** @param {GpuEvent} event */
function eventRow({ kind, data }) {
  if (kind === "xid") return "Xid";
  if (kind === "gpu_lost") return "lost";
  return Object.keys(data).some((name) => /ecc|remapped|retired/.test(name)) ? "memory errors" : "other";
}

/** @param {PlacedLanes} lanes @returns {BandModel} */
export function eventModel(lanes) {
  /** @type {Map<string, BandRow>} */
  const rows = new Map();
  for (const event of lanes.events) {
    const name = eventRow(event);
    const row = rows.get(name) ?? { name, bands: [], marks: [], isCalm: false };
    row.marks.push({ at: placeOfEvent(lanes, event), text: event.message });
    rows.set(name, row);
  }
  return { rows: [...rows.values()], dx: 1, meta: { steps_per_column: 1 }, isKnown: true };
}

/** @param {BandModel} model @param {import("../figure_frame.js").Frame} frame @param {import("../theme.js").Palette} palette @returns {import("../figure_drawing.js").Drawing} */
function drawBands({ rows }, frame, palette) {
  const least = (LEAST_WIDTH * (frame.range.stop - frame.range.start)) / frame.plotWidth;
  const colours = { warning: palette.warning, calm: palette.hatch, bad: palette.bad };
  const box = (/** @type {Span} */ { from, to }, /** @type {number} */ row, /** @type {number} */ height, /** @type {string} */ fillcolor) => {
    const middle = (from + to) / 2;
    const half = Math.max(to - from, least) / 2; // one second of a week still shows
    return { type: "rect", x0: middle - half, x1: middle + half, y0: row - height, y1: row + height, line: { width: 0 }, fillcolor, layer: "above" };
  };
  const shapes = rows.flatMap(({ bands, isCalm, known = [] }, row) => [
    ...known.map((span) => box(span, row, 0.08, palette.headroom[palette.headroom.length - 1])),
    ...bands.map((band) => box(band, row, 0.36, colours[band.look ?? (isCalm ? "calm" : "warning")])),
  ]);
  const x = rows.flatMap(({ marks }) => marks.map(({ at }) => at));
  const y = rows.flatMap(({ marks }, row) => marks.map(() => row));
  const marks = { type: "scatter", mode: "markers", x, y, hoverinfo: "skip", marker: { symbol: "diamond", size: 9, color: palette.bad } };
  const letters = Math.floor((frame.margin.l - 10) / 6);
  const yaxis = {
    range: [rows.length - 0.5, -0.5],
    tickvals: rows.map((_, row) => row),
    ticktext: rows.map(({ name }) => escapePlotText(name.length > letters ? `${name.slice(0, letters - 1)}…` : name)),
    showgrid: false,
  };
  return { traces: [marks], layout: layoutOf(frame, palette, yaxis, { shapes }) };
}

/** What holds at a step. @param {BandModel} model @param {number} step */
function readout({ rows }, step) {
  const parts = rows.flatMap(({ name, bands, marks }) => [
    ...(bands.some(({ from, to }) => from < step + 0.5 && to > step - 0.5) ? [name] : []),
    ...marks.filter(({ at }) => Math.abs(at - step) <= 0.5).map(({ text }) => text),
  ]);
  return parts.join("; ") || "none";
}

/** @param {string} name @param {string} title @param {string} empty @returns {import("./lane_specs.js").LaneSpec} */
const bandSpec = (name, title, empty) => ({
  name,
  title,
  empty,
  plotHeight: (rows) => Math.max(1, rows) * ROW,
  read: (/** @type {any} */ answer) => answer.model,
  isEmpty: (/** @type {BandModel} */ model) => !model.rows.length,
  draw: drawBands,
  readout,
});

export const THROTTLE = bandSpec("gpu-throttle", "Slowed down by", "Not slowed down in these steps, as far as the card tells.");
export const EVENTS = bandSpec("gpu-events", "Events", "No Xid, memory error or other event of this card in these steps.");
