// Cells of a heatmap as they are painted: their places, their colours, and the same as a file has them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { cellPixels, statisticColours } from "../../../web/charts/colours.js";
import { cellsBox, withCells } from "../../../web/charts/heatmap.js";
import { SCALE_BITS, SCALE_TOP } from "../../../web/charts/statistics.js";

const PALETTE = /** @type {any} */ ({ scales: { headroom: SCALE_BITS.map((bits) => [bits / SCALE_TOP, `rgb(${bits * 10}, 0, ${255 - bits * 10})`]) } });
const FRAME = /** @type {any} */ ({ plotWidth: 100, plotHeight: 40, range: { start: 10, stop: 20 } });
const MODEL = { rows: [{}, {}], columns: 10, x0: 10, dx: 1, z: new Float32Array(20), states: new Uint8Array(20) };
const CELLS = { ...MODEL, ...statisticColours(null, PALETTE) };

/** @param {Uint8ClampedArray} pixels @param {number} at */
const pixel = (pixels, at) => [...pixels.slice(4 * at, 4 * at + 4)];

test("cells cover the plot where all of their steps are shown", () => {
  assert.deepEqual(cellsBox(CELLS, FRAME), { left: 0, width: 100, height: 40 });
});

test("a part of them is shown on a plot that is narrower than they are", () => {
  const frame = { ...FRAME, range: { start: 15, stop: 20 } };
  assert.deepEqual(cellsBox(CELLS, frame), { left: -100, width: 200, height: 40 });
});

test("a column of several steps is as wide as they are", () => {
  const wide = { ...CELLS, columns: 3, x0: 11.5, dx: 4 }; // 10 to 22: the last one is not full
  assert.deepEqual(cellsBox(wide, FRAME), { left: 0, width: 120, height: 40 });
});

test("a value has its colour of the scale, and is at its ends beyond them", () => {
  const z = Float32Array.of(0, 8, 16, -5, 99, 1);
  const pixels = cellPixels({ ...CELLS, z });
  const red = [0, 80, 160, 0, 160, 10];
  red.forEach((wanted, at) => {
    const [r, g, b, a] = pixel(pixels, at);
    assert.ok(Math.abs(r - wanted) <= 1 && g === 0 && Math.abs(b - (255 - wanted)) <= 1 && a === 255, `${at}: ${r} ${g} ${b} ${a}`);
  });
});

test("what is no number has no colour", () => {
  const pixels = cellPixels({ ...CELLS, z: [NaN, Infinity, -Infinity] });
  for (const at of [0, 1, 2]) assert.deepEqual(pixel(pixels, at), [0, 0, 0, 0]);
});

test("a scale of its own goes from low to high", () => {
  const own = /** @type {const} */ ({ low: -8, high: 8, colours: [[0, "rgb(255, 0, 0)"], [0.5, "rgb(0, 0, 0)"], [1, "rgb(0, 0, 255)"]] });
  const pixels = cellPixels({ ...own, z: [-8, 0, 8, -4] });
  assert.deepEqual([0, 2].map((at) => pixel(pixels, at)), [[255, 0, 0, 255], [0, 0, 255, 255]]);
  assert.ok(Math.max(...pixel(pixels, 1).slice(0, 3)) <= 1);
  assert.ok(Math.abs(pixel(pixels, 3)[0] - 127) <= 1);
});

test("a file has the same cells as Plotly's heatmap, under what else is drawn, and the states above it", () => {
  const z = Float32Array.from({ length: 20 }, (_, at) => at);
  const marks = { type: "scatter" };
  const { traces, layout } = /** @type {any} */ (withCells({ traces: [marks], layout: { width: 5 } }, { ...CELLS, z }, { ...FRAME, range: { start: 12, stop: 14 } }, "data:states"));
  assert.equal(traces.length, 2);
  assert.equal(traces[1], marks);
  const { type, z: rows, zmin, zmax, x0, dx } = traces[0];
  assert.deepEqual({ type, zmin, zmax, x0, dx }, { type: "heatmap", zmin: 0, zmax: 16, x0: 10, dx: 1 });
  assert.deepEqual(rows, [[...z.slice(0, 10)], [...z.slice(10)]]);
  const [image] = layout.images;
  assert.deepEqual([image.source, image.x, image.y, image.sizex, image.sizey], ["data:states", 11.5, -0.5, 2, 2]);
  assert.equal(layout.width, 5);
});
