// What is said of when parameters were last compared between ranks: never is not silence, and unknown is not never.

import assert from "node:assert/strict";
import { test } from "node:test";

import { comparedSummary, comparedText } from "../../../web/widgets/ranks/compared.js";

const one = /** @type {any} */ ({ parameter: "norm.weight", state: "compared", alike: ["tp"], unknown_axes: [], step: 1200, gradient_step: null });

test("when a parameter was last compared, or why it was not", () => {
  assert.equal(comparedText(one), "last compared at step 1,200");
  assert.equal(comparedText({ ...one, state: "never", step: null }), "not compared in the last 4,096 steps");
  assert.equal(comparedText({ ...one, state: "parts", step: null }), "not compared: each rank has another part");
  assert.equal(comparedText({ ...one, state: "unknown", step: null, unknown_axes: ["dp", "tp"] }), "unknown: nobody says how it lies along dp, tp");
  assert.equal(comparedText({ ...one, state: "unknown", step: null }), "unknown: nobody says how it lies");
});

test("all parameters in a sentence", () => {
  const answer = { stop: 9, parameters: [one, one, one, one], counts: { compared: 2, never: 1, unknown: 1 }, oldest_step: 120 };
  assert.equal(comparedSummary(answer), "2 of 4 parameters compared between ranks, none longer ago than step 120; 1 not compared in the last 4,096 steps, 1 of which it is unknown how they lie.");
  assert.equal(comparedSummary({ ...answer, parameters: [one] }).endsWith(" The first 1 are listed."), true);
  assert.equal(comparedSummary({ ...answer, counts: { parts: 4 }, oldest_step: null }), "0 of 4 parameters compared between ranks; 4 of which each rank has another part.");
  assert.equal(comparedSummary({ stop: 9, parameters: [], counts: {}, oldest_step: null }), "No parameter is known to be the same on several ranks.");
});
