// A grid of cells as rows: for a file every cell, for people what fits a table. Pure.

import { capital, plural } from "./format.js";
import { MOST_ROWS } from "./figure_summary.js";
import { worse } from "./cell_grid.js";

/** @typedef {import("./cell_grid.js").Grid} Grid */
/** @typedef {import("./cell_grid.js").Cell} Cell */
/** @typedef {import("./cell_grid.js").Spot} Spot */
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

/** @param {Grid} grid @param {Say} say @param {Words} words @returns {import("./csv.js").Rows} */
export function gridRows(grid, say, words) {
  const rows = Array.from(spotsOf(grid), (spot) => [
    grid.rows[spot.row], grid.columns[spot.column].replaceAll(",", ""), typeof spot.cell === "number" ? spot.cell : null, stateOf(spot.cell, words), say(grid, spot),
  ]);
  return { columns: ["row", "column", "value", "state", "in_words"], textColumns: ["row", "column", "state", "in_words"], rows };
}

/** Every cell where they are few, else the worst of each row. @param {Grid} grid @param {Say} say @param {Words} words @returns {import("./figure_summary.js").Summary} */
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
