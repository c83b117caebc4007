// The patterns of cells without a value, and canvases as sharp as the screen.

import { STATE } from "../statistics.js";

/** @typedef {import("../theme.js").Palette} Palette */
/** @typedef {{left: number, top: number, width: number, height: number}} Area CSS pixels */

/** Pattern tiles are this many CSS pixels wide and high. */
export const TILE = 8;
/** Those of grids, whose cells are small. */
const SMALL_TILE = 5;
/** As drawn on 8 by 8: one edge meets the other. */
const DIAGONAL = [[-2, 10, 10, -2], [-2, 2, 2, -2], [6, 10, 10, 6]];
const CROSSED = [[0, 0, 8, 8], [0, 8, 8, 0]];

/** By state, on 8 by 8; `width` of a line there. @type {Record<number, (pen: CanvasRenderingContext2D, palette: Palette, width: number) => void>} */
const TILES = {
  [STATE.stale]: (pen, { hatch }, width) => strokes(pen, hatch, width, [[0, 2.5, 8, 2.5], [0, 6.5, 8, 6.5]]),
  [STATE.notObserved]: (pen, { hatch }, width) => strokes(pen, hatch, width, DIAGONAL),
  [STATE.zero]: (pen, { hatch }) => dots(pen, hatch, [[2, 2], [6, 6]]),
  [STATE.scaleStale]: (pen, { scales, hatch }, width) => {
    ground(pen, scales.difference[4][1]);
    strokes(pen, hatch, 1.2 * width, [[2.5, 0, 2.5, 8], [6.5, 0, 6.5, 8]]);
  },
  [STATE.scaleTooSmall]: (pen, { scales, nonfiniteInk }, width) => {
    ground(pen, scales.difference[0][1]);
    strokes(pen, nonfiniteInk, 1.2 * width, [[2.5, 0, 2.5, 8], [6.5, 0, 6.5, 8]]);
  },
  [STATE.saturated]: (pen, { scales }) => ground(pen, scales.headroom[0][1]),
  [STATE.inf]: (pen, { nonfinite, nonfiniteInk }, width) => {
    ground(pen, nonfinite);
    strokes(pen, nonfiniteInk, 1.2 * width, DIAGONAL);
  },
  [STATE.nan]: (pen, { nonfinite, nonfiniteInk }, width) => {
    ground(pen, nonfinite);
    strokes(pen, nonfiniteInk, 1.2 * width, CROSSED);
  },
};

/** @param {CanvasRenderingContext2D} pen @param {string} colour */
function ground(pen, colour) {
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 8, 8);
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

/** Sharp on dense screens, bounded on very dense ones. */
export const pixelRatio = () => Math.max(1, Math.min(2, Math.ceil(window.devicePixelRatio || 1)));

/** @param {HTMLCanvasElement} canvas */
export function penOf(canvas) {
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("this browser gives no 2-D canvas");
  return pen;
}

/** An empty canvas of so many pixels. @param {number} width @param {number} height */
export function canvasOf(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width));
  canvas.height = Math.max(1, Math.round(height));
  return { canvas, pen: penOf(canvas) };
}

/** Of each theme. @type {WeakMap<Palette, Map<string, CanvasPattern>>} */
const made = new WeakMap();

/** A repeating fill for one state, of pixels: tiles begin at the canvas' corner, so that all cells share one lattice. @param {number} state @param {Palette} palette @param {number} ratio pixels a CSS pixel @param {number} [tile] CSS pixels @returns {CanvasPattern} */
export function patternOf(state, palette, ratio, tile = TILE) {
  const known = made.get(palette) ?? new Map();
  made.set(palette, known);
  const key = `${state} ${ratio} ${tile}`;
  if (!known.has(key)) {
    const { canvas, pen } = canvasOf(tile * ratio, tile * ratio);
    pen.scale(canvas.width / 8, canvas.height / 8);
    TILES[state](pen, palette, 8 / tile);
    known.set(key, pen.createPattern(canvas, "repeat"));
  }
  return known.get(key);
}

/** A cell of a grid that holds a state, on a canvas that is scaled to CSS pixels. @param {CanvasRenderingContext2D} pen @param {Area} box @param {number} state @param {Palette} palette */
export function paintState(pen, { left, top, width, height }, state, palette) {
  const ratio = pen.getTransform().a;
  const pattern = patternOf(state, palette, ratio, SMALL_TILE);
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  pen.fillStyle = pattern;
  pen.fillRect(left, top, width, height);
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
