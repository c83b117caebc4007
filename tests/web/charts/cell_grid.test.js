
import assert from "node:assert/strict";
import { test } from "node:test";

import { boxOf, movedSpot, pooled, spotAt, worse } from "../../../web/charts/cells/cell_grid.js";
import { colourAt, costShare } from "../../../web/charts/colours.js";

const grid = (/** @type {import("../../../web/charts/cells/cell_grid.js").Cell[][]} */ cells) => ({
  rows: cells.map((_, i) => `row ${i}`),
  columns: (cells[0] ?? []).map((_, i) => `column ${i}`),
  cell: (/** @type {number} */ row, /** @type {number} */ column) => cells[row][column],
});

test("one hot cell of a thousand rows survives a picture of ten pixels", () => {
  const cells = Array.from({ length: 1000 }, (_, row) => [row === 537 ? 0.9 : 0.001]);
  const pool = pooled(grid(cells), 10, 10);
  assert.deepEqual([pool.rows, pool.columns], [10, 1]);
  assert.deepEqual(pool.cells.map((cell) => cell === 0.9), Array.from({ length: 10 }, (_, row) => row === 5));
});

test("of cells that share a pixel: failed, then the largest, then not known, then nothing", () => {
  assert.equal(worse("bad", 5), "bad");
  assert.equal(worse(5, "bad"), "bad");
  assert.equal(worse(null, 0), 0, "a known calm cell is not hidden by one that is not known");
  assert.equal(worse("blank", null), null);
  assert.equal(worse(1, 2), 2);
});

test("a place on the picture and back", () => {
  const area = { left: 80, top: 4, width: 300, height: 100 };
  const of = grid([[1, 2, 3], [4, 5, 6]]);
  assert.deepEqual(spotAt(85, 10, of, area), { row: 0, column: 0 });
  assert.deepEqual(spotAt(379, 103, of, area), { row: 1, column: 2 });
  assert.equal(spotAt(79, 10, of, area), null);
  assert.equal(spotAt(85, 105, of, area), null);
  assert.deepEqual(boxOf({ row: 1, column: 2 }, of, area), { left: 280, top: 54, width: 100, height: 50 });
});

test("arrows enter at the end and stay within", () => {
  const of = grid([[1, 2], [3, 4]]);
  assert.deepEqual(movedSpot(null, "ArrowLeft", of), { row: 0, column: 1 });
  assert.deepEqual(movedSpot({ row: 1, column: 1 }, "ArrowDown", of), { row: 1, column: 1 });
  assert.deepEqual(movedSpot({ row: 1, column: 1 }, "ArrowUp", of), { row: 0, column: 1 });
  assert.equal(movedSpot(null, "Enter", of), null);
  assert.equal(movedSpot(null, "ArrowLeft", grid([])), null);
});

test("the scale is fixed, and hot is hot", () => {
  const scale = { low: 1e-4, high: 1 };
  assert.deepEqual([0, 1e-4, 1e-2, 1, 50].map((value) => costShare(value, scale)), [0, 0, 0.5, 1, 1]);
  const colours = /** @type {const} */ ([[0, "rgb(0, 0, 100)"], [0.5, "rgb(50, 50, 50)"], [1, "rgb(100, 0, 0)"]]);
  assert.deepEqual([0, 0.75, 1].map((at) => colourAt(colours, at)), ["rgb(0 0 100)", "rgb(75 25 25)", "rgb(100 0 0)"]);
});
