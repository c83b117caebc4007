// Paints the cells of a heatmap on a canvas: colours for values, patterns for states without a value.

import { PAINT_ORDER, STATE } from "../headroom.js";
import { cellPixels, shadesOf } from "../heatmap.js";
import { LEAST_PIXELS, spanBox, stateSpans } from "./state_geometry.js";

/** @typedef {import("../theme.js").Palette} Palette */

/** Pattern tiles are this many CSS pixels wide and high. */
const TILE = 8;
/** States that may cover their neighbours by a pixel to be seen at all. */
/** @type {Set<number>} */
const GROWS = new Set([STATE.saturated, STATE.inf, STATE.nan]);

/** @type {Record<number, (pen: CanvasRenderingContext2D, palette: Palette) => void>} */
const TILES = {
  [STATE.stale]: (pen, { hatch }) => strokes(pen, hatch, 1, [[0, 2.5, 8, 2.5], [0, 6.5, 8, 6.5]]),
  [STATE.notObserved]: (pen, { hatch }) => strokes(pen, hatch, 1, [[-2, 10, 10, -2], [-2, 2, 2, -2], [6, 10, 10, 6]]),
  [STATE.zero]: (pen, { hatch }) => dots(pen, hatch, [[2, 2], [6, 6]]),
  [STATE.saturated]: (pen, { headroom }) => solid(pen, headroom[0]),
  [STATE.inf]: (pen, { nonfinite, nonfiniteInk }) => {
    solid(pen, nonfinite);
    strokes(pen, nonfiniteInk, 1.2, [[-2, 10, 10, -2], [-2, 2, 2, -2], [6, 10, 10, 6]]);
  },
  [STATE.nan]: (pen, { nonfinite, nonfiniteInk }) => {
    solid(pen, nonfinite);
    strokes(pen, nonfiniteInk, 1.2, [[0, 0, 8, 8], [0, 8, 8, 0]]);
  },
};

/** @param {CanvasRenderingContext2D} pen @param {string} colour */
function solid(pen, colour) {
  pen.fillStyle = colour;
  pen.fillRect(0, 0, TILE, TILE);
}

/** @param {CanvasRenderingContext2D} pen @param {string} colour @param {number} width @param {number[][]} lines */
function strokes(pen, colour, width, lines) {
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.beginPath();
  for (const [x0, y0, x1, y1] of lines) {
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
  }
  pen.stroke();
}

/** @param {CanvasRenderingContext2D} pen @param {string} colour @param {number[][]} places */
function dots(pen, colour, places) {
  pen.fillStyle = colour;
  for (const [x, y] of places) pen.fillRect(x - 1, y - 1, 2, 2);
}

/** @param {number} width @param {number} height */
function canvasOf(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width));
  canvas.height = Math.max(1, Math.round(height));
  return { canvas, pen: penOf(canvas) };
}

/** @param {HTMLCanvasElement} canvas */
function penOf(canvas) {
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("this browser gives no 2-D canvas");
  return pen;
}

/** A repeating fill for one state. @param {number} state @param {Palette} palette @param {number} ratio pixels a CSS pixel */
function patternOf(state, palette, ratio) {
  const { canvas, pen } = canvasOf(TILE * ratio, TILE * ratio);
  pen.scale(ratio, ratio);
  TILES[state](pen, palette);
  return /** @type {CanvasPattern} */ (pen.createPattern(canvas, "repeat"));
}

/** Sharp on dense screens, bounded on very dense ones. */
const pixelRatio = () => Math.max(1, Math.min(2, Math.ceil(window.devicePixelRatio || 1)));

/** @typedef {import("../heatmap.js").HeatCells} HeatCells */
/** @typedef {{rows: number, columns: number, width: number, height: number}} Grid */

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
      // A spike of a few pixels would be more hatch than colour; the tick above its column says the rest.
      pen.fillStyle = isBad && Math.min(box.width, box.height) < TILE * ratio ? palette.nonfinite : pattern;
      pen.fillRect(box.x, box.y, box.width, box.height);
    }
  }
}

/** @typedef {{left: number, width: number, height: number}} CellsBox where they lie, in CSS pixels from the plot's left edge */

/** The states of cells as a picture of the plot, as a data URL. @param {HeatCells} cells @param {CellsBox} box @param {number} plotWidth CSS pixels @param {Palette} palette */
export function statesUrl(cells, box, plotWidth, palette) {
  const canvas = document.createElement("canvas");
  const { pen, pixels, ratio } = sized(canvas, cells, box, plotWidth);
  paintStates(pen, cells.states, pixels, palette, ratio);
  return canvas.toDataURL();
}

/** All that there is of cells, on the plot. @param {HTMLCanvasElement} canvas @param {HeatCells} cells @param {CellsBox} box @param {number} plotWidth CSS pixels @param {Palette} palette */
export function paintHeat(canvas, cells, box, plotWidth, palette) {
  const { pen, pixels, ratio } = sized(canvas, cells, box, plotWidth);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(valuesOf(cells), 0, 0, pixels.width, pixels.height);
  paintStates(pen, cells.states, pixels, palette, ratio);
}

/** As large as the plot, and empty: all cells, where a part of them is shown, are more than a canvas can hold. @param {HTMLCanvasElement} canvas @param {HeatCells} cells @param {CellsBox} box @param {number} plotWidth */
function sized(canvas, { rows, columns }, box, plotWidth) {
  const ratio = pixelRatio();
  canvas.width = Math.round(plotWidth * ratio);
  canvas.height = Math.round(box.height * ratio);
  const pen = penOf(canvas);
  pen.translate(Math.round(box.left * ratio), 0);
  return { pen, ratio, pixels: { rows, columns, width: Math.round(box.width * ratio), height: canvas.height } };
}

/** A pixel a cell. @param {HeatCells} cells */
function valuesOf(cells) {
  const { canvas, pen } = canvasOf(cells.columns, cells.rows);
  pen.putImageData(new ImageData(cellPixels(cells, shadesOf(cells.colours)), cells.columns), 0, 0);
  return canvas;
}

/** A swatch of one state for the legend. @param {number} state @param {Palette} palette @param {number} width @param {number} height */
export function paintSwatch(state, palette, width, height) {
  const ratio = pixelRatio();
  const { canvas, pen } = canvasOf(width * ratio, height * ratio);
  pen.fillStyle = patternOf(state, palette, ratio);
  pen.fillRect(0, 0, canvas.width, canvas.height);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  return canvas;
}
