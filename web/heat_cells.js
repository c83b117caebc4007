// What is painted of a heatmap, and where: a colour a value, a pattern a state. Pure.

import { channels } from "./colour_scale.js";
import { axisRange } from "./figure_frame.js";
import { SCALE_TOP, plotlyScale } from "./headroom.js";

/** @typedef {import("./figure_frame.js").Frame} Frame */
/** @typedef {import("./figure_drawing.js").Drawing} Drawing */
/**
 * @typedef {object} HeatCells
 * @property {number} rows
 * @property {number} columns
 * @property {number} x0 centre of the first column
 * @property {number} dx
 * @property {ArrayLike<number>} z row by row; not finite: no colour
 * @property {ArrayLike<number>} states
 * @property {number} low at and below it all has the first colour
 * @property {number} high
 * @property {readonly [number, string][]} colours by their place between low and high, 0 to 1
 */

/**
 * On the headroom scale, unless said otherwise.
 * @param {{rows: readonly unknown[]} & Pick<HeatCells, "columns" | "x0" | "dx" | "z" | "states">} model @param {import("./theme.js").Palette} palette
 * @param {Partial<Pick<HeatCells, "low" | "high" | "colours">>} [scale]
 * @returns {HeatCells}
 */
export function heatCells({ rows, columns, x0, dx, z, states }, palette, scale) {
  return { rows: rows.length, columns, x0, dx, z, states, low: 0, high: SCALE_TOP, colours: plotlyScale(palette.headroom), ...scale };
}

/** Where the cells lie on the plot, in its pixels: wider than it where a part of them is shown. @param {HeatCells} cells @param {Frame} frame */
export function cellsBox({ columns, x0, dx }, { plotWidth, plotHeight, range }) {
  const [start, stop] = axisRange(range);
  const scale = plotWidth / (stop - start);
  return { left: (x0 - dx / 2 - start) * scale, width: Math.max(1, columns * dx * scale), height: plotHeight };
}

/** Colours of a scale that is looked up: more than a screen tells apart. */
const SHADES = 1024;

/**
 * The colours between those of a scale: of `SHADES` equal parts red, green, blue and opaque.
 * @param {readonly [number, string][]} colours
 */
export function shadesOf(colours) {
  const shades = new Uint8ClampedArray(4 * SHADES);
  const stops = colours.map(([at, colour]) => ({ at, parts: channels(colour) }));
  for (let i = 0, below = 0; i < SHADES; i += 1) {
    const at = i / (SHADES - 1);
    while (below < stops.length - 2 && at > stops[below + 1].at) below += 1;
    const [from, to] = [stops[below], stops[below + 1]];
    const share = (at - from.at) / (to.at - from.at);
    shades.set([...from.parts.map((part, c) => part + (to.parts[c] - part) * share), 255], 4 * i);
  }
  return shades;
}

/** A pixel a cell; transparent where there is no value. @param {HeatCells} cells @param {Uint8ClampedArray} shades of `shadesOf` */
export function cellPixels({ z, low, high }, shades) {
  const pixels = new Uint32Array(z.length);
  const colours = new Uint32Array(shades.buffer);
  const scale = (SHADES - 1) / (high - low);
  for (let i = 0; i < z.length; i += 1) {
    if (Number.isFinite(z[i])) pixels[i] = colours[Math.max(0, Math.min(SHADES - 1, Math.round((z[i] - low) * scale)))];
  }
  return new Uint8ClampedArray(pixels.buffer);
}

/** With its cells, as a file has them: as Plotly's heatmap, which has a scale, and the states as an image. @param {Drawing} drawing @param {HeatCells} cells @param {Frame} frame @param {string} states data URL of a picture of the plot @returns {Drawing} */
export function withCells({ traces, layout }, cells, frame, states) {
  const { rows, columns, x0, dx, z, low, high, colours } = cells;
  const lines = Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (_each, column) => z[row * columns + column]));
  const heat = { type: "heatmap", z: lines, x0, dx, y0: 0, dy: 1, zmin: low, zmax: high, zsmooth: false, colorscale: colours, showscale: false, hoverinfo: "skip" };
  return { traces: [heat, ...traces], layout: { ...layout, images: [plotImage(states, rows, frame)] } };
}

/** @param {string} source @param {number} rows @param {Frame} frame */
function plotImage(source, rows, { range }) {
  const [start, stop] = axisRange(range);
  const place = { xref: "x", yref: "y", x: start, y: -0.5, xanchor: "left", yanchor: "top" };
  return { source, ...place, sizex: stop - start, sizey: rows, sizing: "stretch", layer: "above" };
}
