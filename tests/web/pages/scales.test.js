import assert from "node:assert/strict";
import { test } from "node:test";

import { STATE, stateLabel, ticksOf, valueText } from "../../../web/charts/statistics.js";
import { howOften, scalesVerdict } from "../../../web/pages/precision/scales.js";

const operand = (/** @type {object} */ given) => /** @type {any} */ ({ name: "blocks.0.up", kind: "scaled_input", format: "E4M3", state: "value", unknown: "", ...given });
const text = (/** @type {import("../../../web/types.js").Verdict} */ verdict) => verdict.parts.map(([, part]) => part).join("");

test("a verdict on scales says what fits, what does not and what is unknown", () => {
  assert.match(text(scalesVerdict([operand({}), operand({ format: "E5M2" })], 2)), /The scales of both operands in E4M3, E5M2 fit\./);
  const bad = scalesVerdict([operand({ state: "scale_too_small" }), operand({ state: "scale_stale" }), operand({})], 3);
  assert.match(text(bad), /the scale of 1 operand was too small, that of 1 operand stale/);
  const unknown = scalesVerdict([operand({}), operand({ state: "unknown", unknown: "scales: compiled" })], 2);
  assert.equal(unknown.level, "empty");
  assert.match(text(unknown), /^The scale of 1 operand in E4M3 fits\. Of 1 operand nothing is read: compiled\.$/);
  assert.equal(scalesVerdict([operand({ state: "unknown", unknown: "scales: compiled" })], 1).level, "empty");
  const open = /** @type {any} */ ([{ rule: "scale_stale", severity: "warning", summary: "Step 3: stale" }]);
  assert.deepEqual([scalesVerdict([operand({})], 9, open).level, text(scalesVerdict([operand({})], 9, open)).startsWith("Step 3: stale The first")], ["warning", true]);
});

test("operands of which nothing was read in these steps are unknown, and none is said to fit", () => {
  const unread = operand({ state: "not_observed" });
  const none = scalesVerdict([unread, unread], 2);
  assert.equal(none.level, "empty");
  assert.equal(text(none), "No scale was read in these steps. Of 2 operands nothing is read: no reading in these steps.");
  assert.match(text(scalesVerdict([], 0)), /^No operand that is so named was cast/, "a name chose none: nothing is said of scales");
  const some = scalesVerdict([operand({}), unread, operand({ state: "unknown", unknown: "scales: compiled" })], 3);
  assert.equal(some.level, "empty");
  assert.equal(text(some), "The scale of 1 operand in E4M3 fits. Of 2 operands nothing is read: no reading in these steps; compiled.");
});

test("one operand, two and many are each said as they are", () => {
  assert.equal(text(scalesVerdict([operand({})], 1)), "The scale of 1 operand in E4M3 fits.");
  assert.equal(text(scalesVerdict([operand({}), operand({})], 2)), "The scales of both operands in E4M3 fit.");
  assert.equal(text(scalesVerdict([operand({}), operand({}), operand({})], 3)), "The scales of all 3 operands in E4M3 fit.");
  assert.equal(text(scalesVerdict([operand({}), operand({}), operand({ state: "not_observed" })], 3)).split(". ")[0], "The scales of 2 operands in E4M3 fit");
  assert.equal(text(scalesVerdict([operand({})], 9)), "The scale of 1 operand in E4M3 fits. The first 1 of 9 are listed.");
  assert.equal(scalesVerdict([operand({})], 9).level, "empty", "of those that are not listed it is not known");
});

test("scaled headroom is told as room, or as what is beyond the limit", () => {
  const room = /** @type {any} */ ({ scale: "room", low: -8, high: 8, worst: "least" });
  assert.equal(valueText(room, -2), "2.0 bits beyond the limit");
  assert.equal(valueText(room, 3.5), "3.5 bits free");
  assert.deepEqual(ticksOf(room).map(({ text: label }) => label), ["8 beyond", "4 beyond", "the limit", "4", "8 bits free"]);
  assert.deepEqual([stateLabel("scale_stale"), stateLabel("scale_too_small")], ["scale stale", "scale too small"]);
  assert.deepEqual([STATE.scaleStale, STATE.scaleTooSmall], [7, 8]);
});

test("the page says at which steps scales are read", () => {
  assert.match(howOften(16), /read at one step in 16, .*shown is of steps that were read/);
  assert.equal(howOften(1), "Scales are read at each step.");
  assert.equal(howOften(null), "", "of agents that do not say");
});
