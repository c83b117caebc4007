// Bits of headroom more or less than on the other side as a lane: orange where it is less, blue where it is more.

import { channels } from "../colour_scale.js";
import { el } from "../dom.js";
import { heatmapDrawing } from "../figure_drawing.js";
import { heatCells } from "../heat_cells.js";
import { comparisonReadout, parseAgainst, readComparison, sidesOf } from "./comparison_model.js";

/** @typedef {import("./comparison_model.js").ComparisonModel} ComparisonModel */
/** @typedef {import("../theme.js").Palette} Palette */

/** Bits to either side. Fixed, never stretched to the data: two comparisons compare by eye. */
const REACH = 8;
/** Pixels. */
const ROW = 18;
const LEAST_HEIGHT = 60;
const MOST_HEIGHT = 420;

/** The hot end of the headroom scale, the line colour, the accent: told apart whatever colours one sees. @param {Palette} palette @returns {[number, string][]} */
export const differenceScale = ({ headroom, line, accent }) => [[0, headroom[1]], [0.25, headroom[3]], [0.5, line], [0.75, between(line, accent)], [1, accent]];

/** @param {string} one @param {string} other */
function between(one, other) {
  const [a, b] = [channels(one), channels(other)];
  return `rgb(${a.map((channel, i) => Math.round((channel + b[i]) / 2)).join(", ")})`;
}

/** @param {ComparisonModel} model @param {Palette} palette */
const cellsOf = (model, palette) => heatCells(model, palette, { low: -REACH, high: REACH, colours: differenceScale(palette) });

function legend() {
  const ticks = [-REACH, -REACH / 2, 0, REACH / 2, REACH].map((value) => {
    const tick = el("span", {}, value > 0 ? `+${value}` : `${value}`.replace("-", "−"));
    tick.style.left = `${(100 * (value + REACH)) / (2 * REACH)}%`;
    return tick;
  });
  const scale = el("div", { class: "legend-scale" }, el("div", { class: "legend-bar is-difference" }), el("div", { class: "legend-ticks" }, ...ticks));
  const item = (/** @type {string} */ look, /** @type {string} */ text) => el("span", { class: "legend-item" }, el("span", { class: "swatch", "data-look": look, "aria-hidden": "true" }), text);
  const text = "bits of headroom: orange less here than there, blue more";
  return el("div", { class: "legend", role: "note", "aria-label": "Legend" }, scale, el("span", { class: "legend-item" }, text), item("bad", "NaN or Inf on a side"), item("unknown", "not observed on a side; other patterns as above"));
}

/** The lane for what the URL asks to compare with. @param {import("../types.js").PageContext} ctx @returns {import("./lane_specs.js").LaneSpec} */
export function comparisonSpec(ctx) {
  return {
    name: "comparison",
    title: "Difference in headroom",
    empty: "Nothing to compare: no tensor of these kinds and names is on both sides.",
    plotHeight: (rows) => Math.max(LEAST_HEIGHT, Math.min(MOST_HEIGHT, rows * ROW)),
    read: readComparison,
    isEmpty: (/** @type {ComparisonModel} */ { rows, columns }) => !rows.length || !columns,
    draw: heatmapDrawing,
    cells: cellsOf,
    readout: (model, step, row) => comparisonReadout(model, step, row, sidesOf(parseAgainst(ctx.state.against), ctx.state.rank)),
    legend,
  };
}
