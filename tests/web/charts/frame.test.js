
import assert from "node:assert/strict";
import { test } from "node:test";

import { draggedRange, frameOf, pixelOf, rowAt, stepAt } from "../../../web/charts/frame.js";

test("every lane of one width has the same left and right edge", () => {
  const range = { start: 100, stop: 600 };
  const [a, b] = [frameOf(1000, 80, range), frameOf(1000, 400, range)];
  assert.equal(pixelOf(350, a), pixelOf(350, b));
});

test("names get more room on a wide page, and a figure alone on its page asks for its own", () => {
  const range = { start: 0, stop: 10 };
  assert.deepEqual([390, 1000, 1500, 3000].map((width) => frameOf(width, 80, range).margin.l), [84, 172, 240, 260]);
  assert.equal(frameOf(1000, 80, range, 50).margin.l, 50);
});

test("a step's pixel leads back to the step", () => {
  const frame = frameOf(1200, 100, { start: 0, stop: 420 });
  for (const step of [0, 1, 209, 419]) assert.equal(stepAt(pixelOf(step, frame), frame), step);
  assert.equal(stepAt(3, frame), null, "the labels are not the plot");
});

test("rows count from the top, and the band above is no row", () => {
  const frame = frameOf(1000, 100, { start: 0, stop: 10 });
  assert.equal(rowAt(frame.margin.t + frame.band + 1, frame, 10), 0);
  assert.equal(rowAt(frame.margin.t + frame.band + 99, frame, 10), 9);
  assert.equal(rowAt(frame.margin.t, frame, 10), null);
});

test("a drag shows whole steps, at least two", () => {
  assert.deepEqual(draggedRange(9.7, 20.2), { start: 10, stop: 21 });
  assert.deepEqual(draggedRange(5.1, 5.2), { start: 6, stop: 8 });
  assert.deepEqual(draggedRange(20.2, -3), { start: 0, stop: 21 });
});
