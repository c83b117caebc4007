// Paints the cells of a heatmap on a canvas: colours for values, patterns for states without a value.

import { cellPixels } from "../colours.js";
import { cellsBox } from "../heatmap.js";
import { PAINT_ORDER, STATE } from "../statistics.js";
import { TILE, canvasOf, patternOf, penOf, pixelRatio } from "./patterns.js";

/** @typedef {import("../theme.js").Palette} Palette */

/** States that may cover their neighbours by a pixel to be seen at all. @type {Set<number>} */
const GROWS = new Set([STATE.saturated, STATE.scaleStale, STATE.scaleTooSmall, STATE.inf, STATE.nan]);

/** Every state but plain values. @param {CanvasRenderingContext2D} pen @param {ArrayLike<number>} states @param {Grid} pixels @param {Palette} palette @param {number} ratio */
function paintStates(pen, states, pixels, palette, ratio) {
  const spans = stateSpans(states, pixels.rows, pixels.columns);
  for (const state of PAINT_ORDER) {
    const mine = spans.filter((span) => span.state === state);
    if (!mine.length) continue;
    const pattern = patternOf(state, palette, ratio);
    const isBad = state === STATE.inf || state === STATE.nan;
    const least = GROWS.has(state) ? LEAST_PIXELS * ratio : 1;
    for (const span of mine) {
      const box = spanBox(span, pixels, least);
      // A spike of a few pixels would be more hatch than colour; the tick above its column shows the rest.
      pen.fillStyle = isBad && Math.min(box.width, box.height) < TILE * ratio ? palette.nonfinite : pattern;
      pen.fillRect(box.x, box.y, box.width, box.height);
    }
  }
}

/** @typedef {import("../heatmap.js").HeatCells} HeatCells */
/** @typedef {import("../frame.js").Frame} Frame */

/** The states of cells as a picture of the plot, as a data URL. @param {HeatCells} cells @param {Frame} frame @param {Palette} palette */
export function statesUrl(cells, frame, palette) {
  const canvas = document.createElement("canvas");
  const { pen, pixels, ratio } = sized(canvas, cells, frame);
  paintStates(pen, cells.states, pixels, palette, ratio);
  return canvas.toDataURL();
}

/** All that there is of cells, on a canvas that is laid under the plot. @param {HTMLCanvasElement} canvas @param {HeatCells} cells @param {Frame} frame @param {Palette} palette */
export function paintHeatmap(canvas, cells, frame, palette) {
  const { margin, band, plotWidth, plotHeight } = frame;
  canvas.hidden = false;
  Object.assign(canvas.style, { left: `${margin.l}px`, top: `${margin.t + band}px`, width: `${plotWidth}px`, height: `${plotHeight}px` });
  const { pen, pixels, ratio } = sized(canvas, cells, frame);
  const values = canvasOf(cells.columns, cells.rows.length); // a pixel a cell
  values.pen.putImageData(new ImageData(cellPixels(cells), cells.columns), 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(values.canvas, 0, 0, pixels.width, pixels.height);
  paintStates(pen, cells.states, pixels, palette, ratio);
}

/** As large as the plot, and empty: all cells, where a part of them is shown, are more than a canvas can hold. @param {HTMLCanvasElement} canvas @param {HeatCells} cells @param {Frame} frame */
function sized(canvas, cells, frame) {
  const box = cellsBox(cells, frame);
  const ratio = pixelRatio();
  canvas.width = Math.round(frame.plotWidth * ratio);
  canvas.height = Math.round(box.height * ratio);
  const pen = penOf(canvas);
  pen.translate(Math.round(box.left * ratio), 0);
  return { pen, ratio, pixels: { rows: cells.rows.length, columns: cells.columns, width: Math.round(box.width * ratio), height: canvas.height } };
}

// Where cells with a state land in pixels. Pure.

/** Non-finite and saturated cells are never drawn smaller: one step in 100,000 must still show. Pixels. */
export const LEAST_PIXELS = 3;

/** @typedef {{row: number, from: number, to: number, state: number}} Span Columns from (inclusive) to (exclusive). */
/** @typedef {{x: number, y: number, width: number, height: number}} Box */
/** @typedef {{rows: number, columns: number, width: number, height: number}} Grid */

/**
 * Neighbours of one state in a row as one span: a run that is NaN from half-way on paints one box a row.
 * @param {ArrayLike<number>} states @param {number} rows @param {number} columns @returns {Span[]}
 */
export function stateSpans(states, rows, columns) {
  /** @type {Span[]} */
  const spans = [];
  for (let row = 0; row < rows; row += 1) {
    for (let from = 0, to; from < columns; from = to) {
      const state = states[row * columns + from];
      for (to = from + 1; to < columns && states[row * columns + to] === state; to += 1);
      if (state !== 0) spans.push({ row, from, to, state });
    }
  }
  return spans;
}

/**
 * The box of a span in whole pixels, at least `least` in both directions and inside the grid.
 * @param {Span} span @param {Grid} grid @param {number} least
 * @returns {Box}
 */
export function spanBox(span, grid, least) {
  const across = side(span.from, span.to, grid.columns, grid.width, least);
  const down = side(span.row, span.row + 1, grid.rows, grid.height, least);
  return { x: across.at, width: across.size, y: down.at, height: down.size };
}

/** @param {number} from @param {number} to @param {number} cells @param {number} pixels @param {number} least */
function side(from, to, cells, pixels, least) {
  const start = Math.round((from * pixels) / cells);
  const end = Math.round((to * pixels) / cells);
  if (end - start >= least) return { at: start, size: end - start };
  const size = Math.min(least, pixels);
  const centred = Math.round(((from + to) * pixels) / (2 * cells) - size / 2);
  return { at: Math.max(0, Math.min(pixels - size, centred)), size };
}
