// A comparison as the server sends it, decoded, and the lane that draws the difference in bits of headroom.

import { SCALES } from "../../charts/colours.js";
import { heatmapDrawing } from "../../charts/drawing.js";
import { columnAt, readHeatmap, rowName } from "../../charts/heatmap.js";
import { areaItem, colourBar } from "../../charts/legend.js";
import { STATE, STATE_LABELS, isNonfinite } from "../../charts/statistics.js";
import { el } from "../../format/dom.js";
import { bits, count, steps } from "../../format/numbers.js";
import { decode } from "../../format/typed_array.js";

/** @typedef {{count: number, labels: string[]}} Names */
/** @typedef {{kind: "step" | "rank" | "run", number: number, run: string, ranks: number, first_step: number | null, last_step: number | null}} Against */
/**
 * @typedef {object} Loss
 * @property {number} tensor
 * @property {number} other_tensor
 * @property {string} label
 * @property {string} dtype
 * @property {string} other_dtype
 * @property {number} start
 * @property {number} stop
 * @property {number | null} difference_bits
 * @property {number | null} bits
 * @property {number | null} other_bits
 * @property {string} state
 * @property {string} other_state
 */
/**
 * @typedef {import("../../types.js").FigureMeta & {against: Against | null, matched?: number, only_here?: Names, only_there?: Names, losses?: Loss[],
 *   first_step?: number | null, last_step?: number | null, other_damaged_tiles?: number}} ComparisonMeta
 */
/**
 * @typedef {import("../../charts/heatmap.js").HeatmapModel & {here: ArrayLike<number>, there: ArrayLike<number>, bits: ArrayLike<number>, meta: ComparisonMeta}} ComparisonModel
 * `z`: bits that this side has more; `states`: value where both have one, else what hinders it.
 */

/** @param {import("../../types.js").FigureAnswer} answer @returns {ComparisonModel} */
export function readComparison(answer) {
  const meta = /** @type {any} */ (answer.meta);
  const here = decode(meta.states);
  const there = decode(meta.other_states);
  const states = Uint8Array.from(here, (state, at) => hindrance(state, there[at]));
  return /** @type {any} */ ({ ...readHeatmap(answer), states, here, there, bits: decode(meta.bits), meta });
}

/** Worst first: what of two states is drawn in place of a difference. */
const ORDER = [STATE.nan, STATE.inf, STATE.zero, STATE.stale, STATE.notObserved];

/** @param {number} here @param {number} there */
export const hindrance = (here, there) => ORDER.find((state) => state === here || state === there) ?? STATE.value;

/** @param {number} state */
const label = (state) => STATE_LABELS[state]?.label ?? "unknown";

/** "2.1 bits less: 5.1 bits here, 7.2 bits there"; or which side has none. @param {ComparisonModel} model @param {number} row @param {number} column @param {Sides} sides */
export function differenceText({ z, bits: own, here, there, columns }, row, column, sides) {
  const at = row * columns + column;
  if (Number.isFinite(z[at])) return `${difference(z[at])}: ${bits(own[at])} ${sides.here}, ${bits(own[at] - z[at])} ${sides.there}`;
  if (hindrance(here[at], there[at]) === STATE.value) return "never both at once";
  return `${label(here[at])} ${sides.here}, ${label(there[at])} ${sides.there}`;
}

/** "2.1 bits less", as seen from this side. @param {number | null} value */
export function difference(value) {
  if (value === null || !Number.isFinite(value)) return "no difference";
  if (Math.abs(value) < 0.005) return "the same";
  return `${bits(Math.abs(value))} ${value < 0 ? "less" : "more"}`;
}

/** The greatest loss of a column, or what is not finite in it. @param {ComparisonModel} model @param {number} column @returns {number | null} its row */
export function worstRow({ z, here, there, rows, columns }, column) {
  let worst = null;
  let least = Infinity;
  for (let row = 0; row < rows.length; row += 1) {
    const at = row * columns + column;
    const value = isNonfinite(here[at]) && !isNonfinite(there[at]) ? -Infinity : z[at];
    if (value < least) [worst, least] = [row, value];
  }
  return worst;
}

/** @param {ComparisonModel} model @param {number} step @param {number | null} row @param {Sides} sides */
export function comparisonReadout(model, step, row, sides) {
  const column = columnAt(model, step);
  const shown = column === null ? null : (row ?? worstRow(model, column));
  if (column === null || shown === null) return "nothing to compare here";
  return `${rowName(model.rows[shown])}: ${differenceText(model, shown, column, sides)}`;
}

/** @typedef {{here: string, there: string}} Sides what to call either */

/** @param {Pick<Against, "kind" | "number"> | null} against @param {number | "all" | null} rank @returns {Sides} */
export function sidesOf(against, rank) {
  if (against?.kind === "step") return { here: "here", there: `at step ${count(against.number)}` };
  if (against?.kind === "rank") return { here: rank === null || rank === "all" ? "worst of all ranks" : `on rank ${rank}`, there: `on rank ${against.number}` };
  return { here: "in this run", there: `in run ${against?.number ?? ""}`.trim() };
}

/** "rank:2" as kind and number. @param {string} text @returns {Pick<Against, "kind" | "number"> | null} */
export function parseAgainst(text) {
  const [kind, number] = text.split(":");
  return kind === "step" || kind === "rank" || kind === "run" ? { kind, number: Number(number) } : null;
}

/** What a reader should know of what was not compared. @param {ComparisonMeta} meta @returns {string[]} */
export function notesOf({ against, first_step: first = null, last_step: last = null, matched = 0, only_here: here, only_there: there, other_damaged_tiles: damaged = 0 }) {
  const notes = [];
  if (against?.kind === "run") notes.push(...reachNotes(against, first, last));
  if (matched === 0) notes.push("No tensor of these kinds and names is on both sides.");
  if (here?.count) notes.push(`In this run only: ${names(here)}.`);
  if (there?.count) notes.push(`In run ${against?.number} only: ${names(there)}.`);
  if (damaged) notes.push(`Of the other run ${count(damaged)} stored tiles are damaged: what they held counts as not observed.`);
  return notes;
}

/** @param {Against} against @param {number | null} first @param {number | null} last */
function reachNotes({ number, first_step: otherFirst, last_step: otherLast }, first, last) {
  if (otherFirst === null || otherLast === null) return [`Run ${number} has no step yet.`];
  if (first === null || last === null || (first === otherFirst && last === otherLast)) return [];
  const span = (/** @type {number} */ low, /** @type {number} */ high) => steps({ start: low, stop: high + 1 });
  return [`This run has ${span(first, last)}, run ${number} ${span(otherFirst, otherLast)}: a step that one of them lacks is not observed there.`];
}

/** @param {Names} names */
function names({ count: n, labels }) {
  const more = n > labels.length ? ` and ${count(n - labels.length)} more` : "";
  return `${count(n)} ${n === 1 ? "tensor" : "tensors"} (${labels.join(", ")}${more})`;
}

// Bits of headroom more or less than on the other side as a lane: orange where it is less, blue where it is more.

/** Bits to either side. Fixed, never stretched to the data: two comparisons compare by eye. */
const REACH = 8;
/** Pixels. */
const ROW = 18;
const LEAST_HEIGHT = 60;
const MOST_HEIGHT = 420;

/** @param {ComparisonModel} _ @param {import("../../charts/theme.js").Palette} palette */
const cells = (_, palette) => ({ low: -REACH, high: REACH, colours: palette.scales.difference });

function legend() {
  const ticks = [-REACH, -REACH / 2, 0, REACH / 2, REACH].map((value) => ({ at: (value + REACH) / (2 * REACH), text: value > 0 ? `+${value}` : `${value}`.replace("-", "−") }));
  const text = "bits of headroom: orange less here than there, blue more";
  return el("div", { class: "legend", role: "note", "aria-label": "Legend" }, colourBar(SCALES.difference, ticks), el("span", { class: "legend-item" }, text), areaItem("bad", "NaN or Inf on a side"), areaItem("unknown", "not observed on a side; other patterns as above"));
}

/** The lane for what the URL asks to compare with. @param {import("../../types.js").PageContext} ctx @returns {import("../../charts/lanes/lane_specs.js").LaneSpec} */
export function comparisonSpec(ctx) {
  return {
    name: "comparison",
    title: "Difference in headroom",
    empty: "Nothing to compare: no tensor of these kinds and names is on both sides.",
    plotHeight: (rows) => Math.max(LEAST_HEIGHT, Math.min(MOST_HEIGHT, rows * ROW)),
    read: readComparison,
    isEmpty: (/** @type {ComparisonModel} */ { rows, columns }) => !rows.length || !columns,
    draw: heatmapDrawing,
    cells,
    readout: (model, step, row) => comparisonReadout(model, step, row, sidesOf(parseAgainst(ctx.state.against), ctx.state.rank)),
    legend,
  };
}
