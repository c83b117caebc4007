
import assert from "node:assert/strict";
import { test } from "node:test";

import { WINDOW, clamped, matching, windowAround, withEarlier, withLater } from "../../../web/pages/step/frames_table.js";

test("a window holds the frame pointed at, with some before it", () => {
  assert.deepEqual(windowAround(5000, -1), { from: 0, to: WINDOW });
  assert.deepEqual(windowAround(12, 3), { from: 0, to: 12 });
  assert.deepEqual(windowAround(5000, 2500), { from: 2400, to: 2400 + WINDOW });
  assert.deepEqual(windowAround(5000, 4999), { from: 5000 - WINDOW, to: 5000 });
});

test("a window grows by wish, within its list", () => {
  assert.deepEqual(withEarlier({ from: 100, to: 500 }), { from: 0, to: 500 });
  assert.deepEqual(withLater({ from: 100, to: 500 }, 600), { from: 100, to: 600 });
  assert.deepEqual(clamped({ from: 0, to: 12 }, 20), { from: 0, to: 20 });
  assert.deepEqual(clamped({ from: 0, to: 900 }, 5000), { from: 0, to: 900 });
});

test("frames are found by a part of their label, in any case", () => {
  const frames = [{ label: "blocks.0.FF output" }, { label: "head grad" }];
  assert.deepEqual([matching(frames, ""), matching(frames, "ff"), matching(frames, "GRAD"), matching(frames, "x")], [[0, 1], [0], [1], []]);
});
