// Paints grids of cells and their legends on a canvas: colours for numbers, patterns for unknown and failed.

import { shorten } from "../../format/numbers.js";
import { colourAt, costShare } from "../colours.js";
import { FONT } from "../drawing.js";
import { labelledRows } from "../frame.js";
import { STATE } from "../statistics.js";
import { pooled } from "./cell_grid.js";
import { paintState } from "./patterns.js";

/** @typedef {import("./cell_grid.js").Grid} Grid */
/** @typedef {import("./cell_grid.js").Area} Area */
/** @typedef {import("../colours.js").CostScale} Scale */
/** @typedef {import("../theme.js").Palette} Palette */

/** Pixels between two row labels, and for a column label. */
const ROW_LABEL = 14;
const COLUMN_LABEL = 52;
/** Pixels of an average letter, and at the foot of the columns. */
const LETTER = 6.2;
export const FOOT = 18;
const CELL_FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

/**
 * @param {CanvasRenderingContext2D} pen @param {Grid} grid @param {Area} area @param {Scale} scale @param {Palette} palette
 */
export function paintCells(pen, grid, area, scale, palette) {
  const { rows, columns, cells } = pooled(grid, area.height, area.width);
  const x = (/** @type {number} */ column) => area.left + Math.round((column * area.width) / columns);
  const y = (/** @type {number} */ row) => area.top + Math.round((row * area.height) / rows);
  const gap = area.height / rows > 6 ? 1 : 0;
  const gapAcross = area.width / columns > 20 ? 1 : 0;
  for (const [at, cell] of cells.entries()) {
    if (cell === "blank") continue;
    const [row, column] = [Math.floor(at / columns), at % columns];
    const box = { left: x(column), top: y(row), width: x(column + 1) - x(column) - gapAcross, height: y(row + 1) - y(row) - gap };
    if (typeof cell === "number") solid(pen, box, colourAt(palette.scales.cost, costShare(cell, scale)));
    else paintState(pen, box, cell === "bad" ? STATE.nan : STATE.notObserved, palette);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {Area} box @param {string} colour */
function solid(pen, { left, top, width, height }, colour) {
  pen.fillStyle = colour;
  pen.fillRect(left, top, width, height);
}

/** Dotted, so that the cells are seen through. @param {CanvasRenderingContext2D} pen @param {readonly number[]} shares of the width @param {Area} area @param {Palette} palette */
export function paintHairlines(pen, shares, { left, top, width, height }, palette) {
  pen.save();
  pen.strokeStyle = palette.ink;
  pen.globalAlpha = 0.45;
  pen.setLineDash([1, 3]);
  pen.beginPath();
  for (const share of shares) {
    const x = Math.round(left + share * width) + 0.5;
    pen.moveTo(x, 0);
    pen.lineTo(x, top + height);
  }
  pen.stroke();
  pen.restore();
}

/** Names at the left and under the columns, as many as fit. @param {CanvasRenderingContext2D} pen @param {Grid} grid @param {Area} area @param {Palette} palette */
export function paintNames(pen, { rows, columns }, area, palette) {
  pen.font = CELL_FONT;
  pen.fillStyle = palette.muted;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const row of labelledRows(rows.length, area.height, ROW_LABEL)) {
    const middle = area.top + ((row + 0.5) / rows.length) * area.height;
    pen.fillText(shorten(rows[row], Math.floor((area.left - 8) / LETTER)), area.left - 6, middle);
  }
  pen.textAlign = "center";
  for (const column of labelledRows(columns.length, area.width, COLUMN_LABEL)) {
    pen.fillText(columns[column], area.left + ((column + 0.5) / columns.length) * area.width, area.top + area.height + FOOT / 2 + 2);
  }
}

/** Plain text beside a row. @param {CanvasRenderingContext2D} pen @param {string} text @param {number} x right edge @param {number} y middle @param {Palette} palette */
export function paintName(pen, text, x, y, palette) {
  pen.font = CELL_FONT;
  pen.fillStyle = palette.muted;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  pen.fillText(text, x, y);
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} x middle @param {number} y middle @param {Palette} palette */
export function paintTick(pen, text, x, y, palette) {
  paintName(pen, "", x, y, palette);
  pen.textAlign = "center";
  pen.fillText(text, x, y);
}

// The legend under a saved picture: its scale of colours, and what its patterns mean.

export const LEGEND_HEIGHT = 40;
const SCALE = { left: 24, width: 240 };
/** Pixels of the bar, of a swatch, and how fine the bar's colours are. */
const BAR = 9;
const SWATCH = 20;
const PARTS = 60;
const LEGEND_LETTER = 6;

/** Swatches with their texts in a row. @param {CanvasRenderingContext2D} pen @param {number} left @param {Record<string, (box: Area) => void>} items by text @param {Palette} palette */
export function paintItems(pen, left, items, palette) {
  let x = left;
  for (const [text, paint] of Object.entries(items)) {
    paint({ left: x, top: 10, width: SWATCH, height: 12 });
    pen.font = `11px ${FONT}`;
    pen.fillStyle = palette.muted;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(text, x + SWATCH + 6, 16);
    x += SWATCH + 24 + text.length * LEGEND_LETTER;
  }
}

/**
 * @param {CanvasRenderingContext2D} pen @param {import("../colours.js").CostScale} scale @param {string} unknown @param {string | undefined} bad
 * @param {Palette} palette
 */
export function paintScale(pen, scale, unknown, bad, palette) {
  for (let i = 0; i < PARTS; i += 1) {
    pen.fillStyle = colourAt(palette.scales.cost, i / (PARTS - 1));
    pen.fillRect(SCALE.left + (i * SCALE.width) / PARTS, 6, SCALE.width / PARTS, BAR);
  }
  pen.font = `10px ${FONT}`;
  pen.fillStyle = palette.muted;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (const value of scale.ticks) pen.fillText(scale.text(value), SCALE.left + costShare(value, scale) * SCALE.width, 24);
  const items = { [unknown]: (/** @type {Area} */ box) => paintState(pen, box, STATE.notObserved, palette) };
  if (bad) items[bad] = (box) => paintState(pen, box, STATE.nan, palette);
  paintItems(pen, SCALE.left + SCALE.width + 56, items, palette);
}
