// A heatmap of cells with names at its left and below, and its scale; its cells as rows for a file or a table.

import { el } from "../../format/dom.js";
import { capital, plural } from "../../format/numbers.js";
import { MOST_ROWS } from "../saving/rows.js";
import { share } from "../theme.js";
import { boxOf, movedSpot, spotAt, worse } from "./cell_grid.js";
import { FOOT, LEGEND_HEIGHT, paintCells, paintHairlines, paintNames, paintScale } from "./cell_painting.js";
import { createPicture } from "./picture.js";

/** @typedef {import("./cell_grid.js").Grid} Grid */
/** @typedef {import("./cell_grid.js").Spot} Spot */
/**
 * @typedef {object} HeatmapOptions
 * @property {string} name
 * @property {string} title
 * @property {import("../theme.js").Scale} scale
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

/** @param {import("../theme.js").Scale} scale @param {string} unknown @param {string} [bad] */
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

// A grid of cells as rows: for a file every cell, for people what fits a table.

/** @typedef {import("./cell_grid.js").Cell} Cell */
/** @typedef {{unknown: string, bad?: string}} Words what a hatched cell means, and a crossed one */
/** @typedef {(grid: Grid, spot: Spot) => string} Say */

/** Cells of which something can be said. @param {Grid} grid @returns {Generator<Spot & {cell: Cell}>} */
function* spotsOf({ rows, columns, cell }) {
  for (let row = 0; row < rows.length; row += 1) {
    for (let column = 0; column < columns.length; column += 1) {
      const found = cell(row, column);
      if (found !== "blank") yield { row, column, cell: found };
    }
  }
}

/** @param {Cell} cell @param {Words} words */
const stateOf = (cell, { unknown, bad = "failed" }) => (cell === "bad" ? bad : cell === null ? unknown : "value");

/** @param {Grid} grid @param {Say} say @param {Words} words @returns {import("../saving/files.js").Rows} */
export function gridRows(grid, say, words) {
  const rows = Array.from(spotsOf(grid), (spot) => [
    grid.rows[spot.row], grid.columns[spot.column].replaceAll(",", ""), typeof spot.cell === "number" ? spot.cell : null, stateOf(spot.cell, words), say(grid, spot),
  ]);
  return { columns: ["row", "column", "value", "state", "in_words"], textColumns: ["row", "column", "state", "in_words"], rows };
}

/** Every cell where they are few, else the worst of each row. @param {Grid} grid @param {Say} say @param {Words} words @returns {import("../saving/rows.js").Summary} */
export function gridSummary(grid, say, words) {
  const spots = [...spotsOf(grid)];
  if (spots.length <= MOST_ROWS) {
    const rows = spots.map((spot) => [grid.rows[spot.row], grid.columns[spot.column], say(grid, spot), stateOf(spot.cell, words)]);
    return { columns: ["Row", "Column", "In words", "State"], rows, note: "" };
  }
  const worst = worstOfRows(spots);
  const rows = worst.slice(0, MOST_ROWS).map(({ spot, missing }) => [grid.rows[spot.row], grid.columns[spot.column], say(grid, spot), missing ? plural(missing, "cell") : "none"]);
  const note = worst.length > MOST_ROWS ? `${MOST_ROWS} of ${plural(worst.length, "row")}; the CSV file has every cell.` : "The CSV file has every cell.";
  return { columns: ["Row", "Worst at", "In words", capital(words.unknown)], rows, note };
}

/** @param {readonly (Spot & {cell: Cell})[]} spots @returns {{spot: Spot & {cell: Cell}, missing: number}[]} */
function worstOfRows(spots) {
  /** @type {Map<number, {spot: Spot & {cell: Cell}, missing: number}>} */
  const found = new Map();
  for (const spot of spots) {
    const row = found.get(spot.row) ?? { spot, missing: 0 };
    if (spot.cell === null) row.missing += 1;
    if (worse(row.spot.cell, spot.cell) !== row.spot.cell) row.spot = spot;
    found.set(spot.row, row);
  }
  return [...found.values()];
}
