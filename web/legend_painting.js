// The legend under a saved picture: its scale of colours, and what its patterns mean.

import { FONT } from "./figure_drawing.js";
import { hatched, paintCells } from "./cell_painting.js";
import { colourAt, share } from "./colour_scale.js";

/** @typedef {import("./cell_grid.js").Area} Area */
/** @typedef {import("./theme.js").Palette} Palette */

export const LEGEND_HEIGHT = 40;
const SCALE = { left: 24, width: 240 };
/** Pixels of the bar, of a swatch, and how fine the bar's colours are. */
const BAR = 9;
const SWATCH = 20;
const PARTS = 60;
const LETTER = 6;

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
    x += SWATCH + 24 + word.length * LETTER;
  }
}

/**
 * @param {CanvasRenderingContext2D} pen @param {import("./colour_scale.js").Scale} scale @param {string} unknown @param {string | undefined} bad
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
