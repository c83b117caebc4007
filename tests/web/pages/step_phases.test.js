
import assert from "node:assert/strict";
import { test } from "node:test";

import { PHASES, loaderNote, readPhases } from "../../../web/pages/overview/overview_lanes.js";

/** @param {object[]} data @param {object} [meta] */
const answer = (data, meta = {}) => readPhases(/** @type {any} */ ({ figure: { data }, meta: { steps_per_column: 1, ...meta } }));
const line = (/** @type {string} */ name, /** @type {(number | null)[]} */ y) => ({ name, x: [0, 1], y });

test("phases are read by name, worst lines are left to hover's numbers", () => {
  const model = answer([line("backward", [100, null]), line("data wait", [5, 6]), line("data wait, worst", [50, 60]), line("slowest step", [200, 200])]);
  assert.deepEqual(model.phases.map(({ place }) => place), [0, 2], "in the order they are stacked");
  assert.equal(model.slowest?.name, "slowest step");
  assert.equal(PHASES.readout(model, 0, null), "data wait 5 ms, backward 100 ms");
  assert.equal(PHASES.readout(model, 1, null), "data wait 6 ms, backward n/a");
  assert.equal(PHASES.isEmpty(model), false);
  assert.equal(PHASES.isEmpty(answer([])), true);
});

test("a run bound by its data loader is named as such", () => {
  assert.equal(loaderNote(answer([])), "");
  assert.match(loaderNote(answer([], { loader_bound_ranks: [2] })), /^Bound by the data loader: rank 2 spends/);
});
