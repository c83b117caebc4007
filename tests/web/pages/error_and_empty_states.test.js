// Failed requests of a run, figures that have nothing, and rows of tables.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError } from "../../../web/api/fetch.js";
import { isEmpty } from "../../../web/pages/layers/layers.js";
import { isOfRun } from "../../../web/widgets/states/error_state.js";
import { keysOf } from "../../../web/widgets/tables/sorted_table.js";

test("only what is said of the run means that there is none", () => {
  assert.equal(isOfRun(new ApiError(404, "unknown_run", "there is no run 9")), true);
  assert.equal(isOfRun(new ApiError(422, "bad_parameter", "run_id: Input should be a valid integer")), true);
  assert.equal(isOfRun(new ApiError(422, "bad_parameter", "statistic 'x' is not one of amax")), false);
  assert.equal(isOfRun(new ApiError(404, "unknown_step", "run 1 has no step 9")), false);
});

test("a figure that could not be had is not one that has nothing", () => {
  const spec = /** @type {any} */ ({ isEmpty: (/** @type {{rows: unknown[]}} */ { rows }) => !rows.length });
  assert.equal(isEmpty(undefined), false);
  assert.equal(isEmpty({ model: null, spec }), false);
  assert.equal(isEmpty({ model: { rows: [] }, spec }), true);
  assert.equal(isEmpty({ model: { rows: [1] }, spec }), false);
});

test("a row of a table is the same row wherever it comes to stand", () => {
  assert.deepEqual(keysOf(["a", "b", "a"], (row) => row), ["0 a", "0 b", "1 a"]);
  assert.deepEqual(keysOf(["b", "a", "a"], (row) => row), ["0 b", "0 a", "1 a"]);
});
