// A heatmap of cells with names at its left and below, and its scale: rank by step, rank by rank.

import { boxOf, movedSpot, spotAt } from "../cell_grid.js";
import { gridRows, gridSummary } from "../cell_grid_rows.js";
import { FOOT, paintCells, paintHairlines, paintNames } from "../cell_painting.js";
import { LEGEND_HEIGHT, paintScale } from "../legend_painting.js";
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
  /** @type {readonly number[]} */
  let marks = [];
  const areaOf = (/** @type {Grid} */ grid, /** @type {import("./picture.js").Size} */ size) => {
    const { left, width } = square ? { left: 40, width: size.width - 40 - RIGHT } : across(size.width);
    return { left, top: TOP, width: square ? Math.min(width, grid.columns.length * SQUARE) : width, height: size.height - TOP - FOOT };
  };
  const picture = createPicture(
    {
      ...options,
      height: (/** @type {Grid} */ grid, width) => {
        if (square) return TOP + FOOT + Math.min(MOST_HEIGHT, grid.rows.length * Math.min(26, SQUARE), Math.max(80, width - 52));
        return TOP + FOOT + Math.max(LEAST_HEIGHT, Math.min(MOST_HEIGHT, grid.rows.length * ROW), Math.min(MOST_HEIGHT, grid.rows.length * LEAST_ROW));
      },
      paint: (pen, grid, size, palette) => {
        paintCells(pen, grid, areaOf(grid, size), scale, palette);
        paintNames(pen, grid, areaOf(grid, size), palette);
        paintHairlines(pen, marks.map((column) => column / grid.columns.length), areaOf(grid, size), palette);
      },
      spotAt: (grid, x, y, size) => spotAt(x, y, grid, areaOf(grid, size)),
      moved: (grid, spot, key) => movedSpot(spot, key, grid),
      has: ({ rows, columns }, { row, column }) => row < rows.length && column < columns.length,
      boxOf: (grid, spot, size) => boxOf(spot, grid, areaOf(grid, size)),
      rows: (grid) => gridRows(grid, options.say, { unknown, bad }),
      summary: (grid) => gridSummary(grid, options.say, { unknown, bad }),
      legend: { height: LEGEND_HEIGHT, paint: (pen, palette) => paintScale(pen, scale, unknown, bad, palette) },
    },
    scaleLegend(scale, unknown, bad),
  );
  return {
    ...picture,
    /** A hairline at each of these columns. @param {readonly number[]} columns */
    mark(columns) {
      const isSame = String(columns) === String(marks);
      marks = columns;
      if (!isSame) picture.paint();
    },
  };
}

/** Where the columns lie in a picture that is so wide. Pixels. @param {number} width */
export function across(width) {
  const left = width < 640 ? 64 : 84;
  return { left, width: width - left - RIGHT };
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
