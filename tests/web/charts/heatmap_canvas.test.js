
import assert from "node:assert/strict";
import { test } from "node:test";

import { LEAST_PIXELS, spanBox, stateSpans } from "../../../web/charts/cells/heatmap_canvas.js";
import { labelledRows, thinned } from "../../../web/charts/frame.js";

test("neighbours of one state become one span, plain values none", () => {
  assert.deepEqual(stateSpans([0, 3, 3, 2, 0, 3, 3, 3], 2, 4), [
    { row: 0, from: 1, to: 3, state: 3 },
    { row: 0, from: 3, to: 4, state: 2 },
    { row: 1, from: 1, to: 4, state: 3 },
  ]);
});

test("one hot cell among 2,000 columns and 400 rows is drawn at least 3 by 3 pixels, wherever it is", () => {
  const grid = { rows: 400, columns: 2000, width: 600, height: 300 };
  for (const column of [0, 1, 999, 1998, 1999]) {
    for (const row of [0, 200, 399]) {
      const box = spanBox({ row, from: column, to: column + 1, state: 3 }, grid, LEAST_PIXELS);
      assert.ok(box.width >= 3 && box.height >= 3);
      assert.ok(box.x >= 0 && box.y >= 0 && box.x + box.width <= 600 && box.y + box.height <= 300);
      assert.ok(Math.abs(box.x + box.width / 2 - (column + 0.5) * 0.3) <= 2, "and where the cell is");
    }
  }
});

test("cells that are large enough keep their edges, so that neighbours meet", () => {
  const grid = { rows: 3, columns: 7, width: 100, height: 50 };
  const boxes = [0, 1, 2, 3, 4, 5, 6].map((from) => spanBox({ row: 1, from, to: from + 1, state: 3 }, grid, 1));
  for (const [i, box] of boxes.slice(1).entries()) assert.equal(box.x, boxes[i].x + boxes[i].width);
  assert.equal(boxes[6].x + boxes[6].width, 100);
});

test("a plot smaller than the least size is filled, not overrun", () => {
  assert.deepEqual(spanBox({ row: 0, from: 0, to: 1, state: 3 }, { rows: 1, columns: 1, width: 2, height: 2 }, 3), { x: 0, y: 0, width: 2, height: 2 });
});

test("row labels are as many as fit", () => {
  assert.deepEqual(labelledRows(4, 100, 13), [0, 1, 2, 3]);
  assert.deepEqual(labelledRows(10, 60, 13), [0, 3, 6, 9]);
  assert.deepEqual(labelledRows(0, 60, 13), []);
});

test("marks keep the first of a crowd and every lone one", () => {
  assert.deepEqual(thinned([0, 1, 2, 3, 10, 50], 3), [0, 3, 10, 50]);
});
