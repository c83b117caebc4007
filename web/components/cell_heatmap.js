// A heatmap of cells with names at its left and below, and its scale: rank by step, rank by rank.

import { boxOf, movedSpot, spotAt } from "../cell_grid.js";
import { FOOT, paintCells, paintNames } from "../cell_painting.js";
import { share } from "../colour_scale.js";
import { el } from "../dom.js";
import { createPicture } from "./picture.js";

/** @typedef {import("../cell_grid.js").Grid} Grid */
/** @typedef {import("../cell_grid.js").Spot} Spot */
/**
 * @typedef {object} HeatmapOptions
 * @property {string} name
 * @property {string} title
 * @property {import("../colour_scale.js").Scale} scale
 * @property {string} unknown what a hatched cell means
 * @property {string} [bad] what a crossed magenta cell means, where there are any
 * @property {(grid: Grid, spot: Spot) => string} say
 * @property {(grid: Grid, spot: Spot) => void} [pick]
 * @property {string} [keys]
 * @property {boolean} [square] as wide as high, for matrices
 */

/** Pixels: a row at most and at least, the whole plot at most. */
const ROW = 18;
const LEAST_ROW = 1;
const MOST_HEIGHT = 420;
const LEAST_HEIGHT = 36;
const TOP = 4;
const RIGHT = 12;
/** Pixels a cell of a matrix at most. */
const SQUARE = 34;

/** @param {HeatmapOptions} options */
export function createCellHeatmap({ scale, unknown, bad, square = false, ...options }) {
  const areaOf = (/** @type {Grid} */ grid, /** @type {import("./picture.js").Size} */ { width, height }) => {
    const left = square ? 40 : width < 640 ? 64 : 84;
    const across = width - left - RIGHT;
    return { left, top: TOP, width: square ? Math.min(across, grid.columns.length * SQUARE) : across, height: height - TOP - FOOT };
  };
  return createPicture(
    {
      ...options,
      height: (/** @type {Grid} */ grid, width) => {
        if (square) return TOP + FOOT + Math.min(MOST_HEIGHT, grid.rows.length * Math.min(26, SQUARE), Math.max(80, width - 52));
        return TOP + FOOT + Math.max(LEAST_HEIGHT, Math.min(MOST_HEIGHT, grid.rows.length * ROW), Math.min(MOST_HEIGHT, grid.rows.length * LEAST_ROW));
      },
      paint: (pen, grid, size, palette) => {
        paintCells(pen, grid, areaOf(grid, size), scale, palette);
        paintNames(pen, grid, areaOf(grid, size), palette);
      },
      spotAt: (grid, x, y, size) => spotAt(x, y, grid, areaOf(grid, size)),
      moved: (grid, spot, key) => movedSpot(spot, key, grid),
      has: ({ rows, columns }, { row, column }) => row < rows.length && column < columns.length,
      boxOf: (grid, spot, size) => boxOf(spot, grid, areaOf(grid, size)),
    },
    scaleLegend(scale, unknown, bad),
  );
}

/** @param {import("../colour_scale.js").Scale} scale @param {string} unknown @param {string} [bad] */
function scaleLegend(scale, unknown, bad) {
  const ticks = scale.ticks.map((value) => {
    const tick = el("span", {}, scale.text(value));
    tick.style.left = `${share(value, scale) * 100}%`;
    return tick;
  });
  const bar = el("div", { class: "legend-scale is-cost" }, el("div", { class: "legend-bar is-cost" }), el("div", { class: "legend-ticks" }, ...ticks));
  const item = (/** @type {string} */ look, /** @type {string} */ text) => el("span", { class: "legend-item" }, el("span", { class: "swatch", "data-look": look, "aria-hidden": "true" }), text);
  return el("div", { class: "legend", role: "note", "aria-label": "Legend" }, bar, item("unknown", unknown), bad ? item("bad", bad) : null);
}
