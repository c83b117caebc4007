// Paints grids of cells and their legends on a canvas: colours for numbers, patterns for unknown and failed.

import { shorten } from "../../format/numbers.js";
import { FONT } from "../drawing.js";
import { colourAt, share } from "../theme.js";
import { pooled } from "./cell_grid.js";
import { labelledRows } from "./state_geometry.js";

/** @typedef {import("./cell_grid.js").Grid} Grid */
/** @typedef {import("./cell_grid.js").Area} Area */
/** @typedef {import("../theme.js").Scale} Scale */
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
    if (typeof cell === "number") solid(pen, box, `rgb(${colourAt(palette.headroom, share(cell, scale)).join(" ")})`);
    else if (cell === "bad") failed(pen, box, palette);
    else hatched(pen, box, palette.hatch);
  }
}

/** @param {CanvasRenderingContext2D} pen @param {Area} box @param {string} colour */
function solid(pen, { left, top, width, height }, colour) {
  pen.fillStyle = colour;
  pen.fillRect(left, top, width, height);
}

/** @param {CanvasRenderingContext2D} pen @param {Area} box @param {Palette} palette */
function failed(pen, box, { nonfinite, nonfiniteInk }) {
  solid(pen, box, nonfinite);
  lines(pen, box, nonfiniteInk, 5, true);
}

/** @param {CanvasRenderingContext2D} pen @param {Area} box @param {string} colour */
export const hatched = (pen, box, colour) => lines(pen, box, colour, 5, false);

/** @param {CanvasRenderingContext2D} pen @param {Area} box @param {string} colour @param {number} spacing @param {boolean} crossed */
function lines(pen, { left, top, width, height }, colour, spacing, crossed) {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  const first = Math.floor((left - height) / spacing) * spacing; // one lattice for all cells, whatever their size
  for (let at = first; at < left + width + height; at += spacing) {
    pen.moveTo(at, top + height);
    pen.lineTo(at + height, top);
    if (!crossed) continue;
    pen.moveTo(at, top);
    pen.lineTo(at + height, top + height);
  }
  pen.stroke();
  pen.restore();
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

/** Swatches with their words in a row. @param {CanvasRenderingContext2D} pen @param {number} left @param {Record<string, (box: Area) => void>} items by word @param {Palette} palette */
export function paintItems(pen, left, items, palette) {
  let x = left;
  for (const [word, paint] of Object.entries(items)) {
    paint({ left: x, top: 10, width: SWATCH, height: 12 });
    pen.font = `11px ${FONT}`;
    pen.fillStyle = palette.muted;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(word, x + SWATCH + 6, 16);
    x += SWATCH + 24 + word.length * LEGEND_LETTER;
  }
}

/**
 * @param {CanvasRenderingContext2D} pen @param {import("../theme.js").Scale} scale @param {string} unknown @param {string | undefined} bad
 * @param {Palette} palette
 */
export function paintScale(pen, scale, unknown, bad, palette) {
  for (let i = 0; i < PARTS; i += 1) {
    pen.fillStyle = `rgb(${colourAt(palette.headroom, i / (PARTS - 1)).join(" ")})`;
    pen.fillRect(SCALE.left + (i * SCALE.width) / PARTS, 6, SCALE.width / PARTS, BAR);
  }
  pen.font = `10px ${FONT}`;
  pen.fillStyle = palette.muted;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (const value of scale.ticks) pen.fillText(scale.text(value), SCALE.left + share(value, scale) * SCALE.width, 24);
  const failed = { rows: [""], columns: [""], cell: () => /** @type {const} */ ("bad") };
  const items = { [unknown]: (/** @type {Area} */ box) => hatched(pen, box, palette.hatch) };
  if (bad) items[bad] = (box) => paintCells(pen, failed, box, scale, palette);
  paintItems(pen, SCALE.left + SCALE.width + 56, items, palette);
}
