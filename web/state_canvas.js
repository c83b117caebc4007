// Patterns for the states of a cell, painted on a canvas: Plotly's heatmaps know colours only.

import { PAINT_ORDER, STATE } from "./headroom.js";
import { LEAST_PIXELS, spanBox, stateSpans } from "./state_geometry.js";

/** @typedef {import("./theme.js").Palette} Palette */

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
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("this browser gives no 2-D canvas");
  return { canvas, pen };
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

/**
 * The picture of every state but plain values, as a data URL to lay over a heatmap.
 * @param {ArrayLike<number>} states @param {{rows: number, columns: number, width: number, height: number}} grid
 * @param {Palette} palette
 */
export function paintStates(states, grid, palette) {
  const ratio = pixelRatio();
  const { canvas, pen } = canvasOf(grid.width * ratio, grid.height * ratio);
  const pixels = { ...grid, width: canvas.width, height: canvas.height };
  const spans = stateSpans(states, grid.rows, grid.columns);
  for (const state of PAINT_ORDER) {
    const pattern = patternOf(state, palette, ratio);
    const isBad = state === STATE.inf || state === STATE.nan;
    const least = GROWS.has(state) ? LEAST_PIXELS * ratio : 1;
    for (const span of spans) {
      if (span.state !== state) continue;
      const box = spanBox(span, pixels, least);
      // A spike of a few pixels would be more hatch than colour; the tick above its column says the rest.
      pen.fillStyle = isBad && Math.min(box.width, box.height) < TILE * ratio ? palette.nonfinite : pattern;
      pen.fillRect(box.x, box.y, box.width, box.height);
    }
  }
  return canvas.toDataURL();
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
