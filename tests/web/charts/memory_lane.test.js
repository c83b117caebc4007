// The lane of memory: what its reader says between two samples, and which ranks hold most and least.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LANES } from "../../../web/charts/lanes/lane_specs.js";

const answer = (/** @type {any} */ byRank) => /** @type {any} */ ({
  figure: { data: [{ name: "allocated", x: [0, 40], y: [1.5, 2] }, { name: "reserved", x: [0, 40], y: [4, 4] }] },
  meta: { start: 0, stop: 50, steps_per_column: 1, note: "", unit: "GiB", by_rank: byRank },
});

test("the nearest sample stands for the steps around it", () => {
  const model = LANES.memory.read?.(answer(null));
  assert.equal(LANES.memory.readout(model, 12, null), "allocated 1.5 GiB, reserved 4 GiB");
  assert.equal(LANES.memory.readout(model, 49, null), "allocated 2 GiB, reserved 4 GiB");
  assert.equal(LANES.memory.readout(model, 400, null), "not measured");
});

test("of several ranks those with most and least are named", () => {
  const ends = { most: { rank: 3, bytes: 2 * 2 ** 30 }, least: { rank: 0, bytes: 512 * 2 ** 20 } };
  assert.match(LANES.memory.readout(LANES.memory.read?.(answer(ends)), 40, null), /; now most on rank 3, 2 GiB, least on rank 0, 512 MiB$/);
});
