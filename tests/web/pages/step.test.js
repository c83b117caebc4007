
import assert from "node:assert/strict";
import { test } from "node:test";

import { missingText, stepDetails } from "../../../web/pages/step/step.js";

const answer = (/** @type {object} */ more) => /** @type {any} */ ({
  loss: 2.5, loss_state: "value", loss_scale: null, skipped: null, found_inf: null, step_time_s: 0.25, frames: [], ...more,
});
const names = (/** @type {object} */ more) => stepDetails(answer(more)).map(([name]) => name);

test("without a scaler nothing is said of what only a scaler knows", () => {
  assert.deepEqual(names({}), ["Loss", "Loss scale", "Step time", "Frames"]);
});

test("with a scaler it is said whether the step was taken", () => {
  const details = Object.fromEntries(stepDetails(answer({ loss_scale: 1024, skipped: true, found_inf: true })));
  assert.deepEqual([details.Step, details.found_inf], ["skipped", "yes"]);
  assert.equal(Object.fromEntries(stepDetails(answer({ loss_scale: 1024, skipped: false }))).Step, "taken");
  assert.equal(Object.fromEntries(stepDetails(answer({ loss_scale: 1024 }))).Step, "not known");
});

test("a thinned step is distinguished from one that never came", () => {
  const of = (/** @type {object | null} */ thinned) => missingText(answer({ step: 2003, rank: 1, first_step: 0, last_step: 9000, thinned })).join(": ");
  assert.match(of(null), /^Nothing is stored for step 2,003 of rank 1/);
  assert.match(of({ step: 7680, steps: 8 }), /^Step 2,003 is not stored by itself: Before step 7,680 the run is stored in columns of 8 steps/);
});
