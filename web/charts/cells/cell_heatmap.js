// A heatmap of cells with names at its left and below, and its scale; its cells as rows for a file or a table.

import { el } from "../../format/dom.js";
import { capital, plural } from "../../format/numbers.js";
import { areaItem, costBar } from "../legend.js";
import { MOST_ROWS } from "../saving/rows.js";
import { boxOf, movedSpot, spotAt, worse } from "./cell_grid.js";
import { FOOT, LEGEND_HEIGHT, paintCells, paintHairlines, paintNames, paintScale } from "./cell_painting.js";
import { createPicture } from "./picture.js";

/** @typedef {import("./cell_grid.js").Grid} Grid */
/** @typedef {import("./cell_grid.js").Spot} Spot */
/**
 * @typedef {object} HeatmapOptions
 * @property {string} name
 * @property {string} title
 * @property {import("../colours.js").CostScale} scale
 * @property {string} unknown what a hatched cell means
 * @property {string} [bad] what a crossed magenta cell means, where there are any
 * @property {(grid: Grid, spot: Spot) => string} readout
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
      rows: (grid) => gridRows(grid, options.readout, { unknown, bad }),
      summary: (grid) => gridSummary(grid, options.readout, { unknown, bad }),
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

/** @param {import("../colours.js").CostScale} scale @param {string} unknown @param {string} [bad] */
function scaleLegend(scale, unknown, bad) {
  return el("div", { class: "legend", role: "note", "aria-label": "Legend" }, costBar(scale), areaItem("unknown", unknown), bad ? areaItem("bad", bad) : null);
}

// A grid of cells as rows: for a file every cell, for people what fits a table.

/** @typedef {import("./cell_grid.js").Cell} Cell */
/** @typedef {{unknown: string, bad?: string}} StateLabels what a hatched cell means, and a crossed one */
/** @typedef {(grid: Grid, spot: Spot) => string} Readout */

/** Cells that are not blank. @param {Grid} grid @returns {Generator<Spot & {cell: Cell}>} */
function* spotsOf({ rows, columns, cell }) {
  for (let row = 0; row < rows.length; row += 1) {
    for (let column = 0; column < columns.length; column += 1) {
      const value = cell(row, column);
      if (value !== "blank") yield { row, column, cell: value };
    }
  }
}

/** @param {Cell} cell @param {StateLabels} labels */
const stateOf = (cell, { unknown, bad = "failed" }) => (cell === "bad" ? bad : cell === null ? unknown : "value");

/** @param {Grid} grid @param {Readout} readout @param {StateLabels} labels @returns {import("../saving/files.js").Rows} */
export function gridRows(grid, readout, labels) {
  const rows = Array.from(spotsOf(grid), (spot) => [
    grid.rows[spot.row], grid.columns[spot.column].replaceAll(",", ""), typeof spot.cell === "number" ? spot.cell : null, stateOf(spot.cell, labels), readout(grid, spot),
  ]);
  return { columns: ["row", "column", "value", "state", "in_words"], rows };
}

/** Every cell where they are few, else the worst of each row. @param {Grid} grid @param {Readout} readout @param {StateLabels} labels @returns {import("../saving/rows.js").Summary} */
export function gridSummary(grid, readout, labels) {
  const spots = [...spotsOf(grid)];
  if (spots.length <= MOST_ROWS) {
    const rows = spots.map((spot) => [grid.rows[spot.row], grid.columns[spot.column], readout(grid, spot), stateOf(spot.cell, labels)]);
    return { columns: ["Row", "Column", "Value", "State"], rows, note: "" };
  }
  const worst = worstOfRows(spots);
  const rows = worst.slice(0, MOST_ROWS).map(({ spot, missing }) => [grid.rows[spot.row], grid.columns[spot.column], readout(grid, spot), missing ? plural(missing, "cell") : "none"]);
  const note = worst.length > MOST_ROWS ? `${MOST_ROWS} of ${plural(worst.length, "row")}; the CSV file has every cell.` : "The CSV file has every cell.";
  return { columns: ["Row", "Worst at", "Value", capital(labels.unknown)], rows, note };
}

/** @param {readonly (Spot & {cell: Cell})[]} spots @returns {{spot: Spot & {cell: Cell}, missing: number}[]} */
function worstOfRows(spots) {
  /** @type {Map<number, {spot: Spot & {cell: Cell}, missing: number}>} */
  const byRow = new Map();
  for (const spot of spots) {
    const row = byRow.get(spot.row) ?? { spot, missing: 0 };
    if (spot.cell === null) row.missing += 1;
    if (worse(row.spot.cell, spot.cell) !== row.spot.cell) row.spot = spot;
    byRow.set(spot.row, row);
  }
  return [...byRow.values()];
}
