
import assert from "node:assert/strict";
import { test } from "node:test";

import { draggedAxis, isOn } from "../../../web/charts/lanes/lane_pointer.js";

const FRAME = { plotWidth: 100, range: { start: 10, stop: 20 } };

test("a drag is the part of the axis between its ends, in the direction it went", () => {
  assert.deepEqual(draggedAxis(0, 1, FRAME), [9.5, 19.5]);
  assert.deepEqual(draggedAxis(0.5, 0.25, FRAME), [14.5, 12]);
});

test("a hand that was not still is no drag", () => {
  assert.equal(draggedAxis(0.5, 0.57, FRAME), null);
  assert.notEqual(draggedAxis(0.5, 0.59, FRAME), null);
});

test("a step that was pointed at is let go of once other steps are shown", () => {
  assert.deepEqual([9, 10, 19, 20].map((step) => isOn({ step }, FRAME)), [false, true, true, false]);
});
