import assert from "node:assert/strict";
import { test } from "node:test";

import { STATE, stateLabel, ticksOf, valueText } from "../../../web/charts/statistics.js";
import { scalesVerdict } from "../../../web/pages/precision/scales.js";

const operand = (/** @type {object} */ given) => /** @type {any} */ ({ name: "blocks.0.up", kind: "scaled_input", format: "E4M3", state: "value", unknown: "", ...given });
const text = (/** @type {import("../../../web/types.js").Verdict} */ verdict) => verdict.parts.map(([, part]) => part).join("");

test("a verdict on scales says what fits, what does not and what is unknown", () => {
  assert.match(text(scalesVerdict([operand({}), operand({ format: "E5M2" })], 2)), /The scales of all 2 operands in E4M3, E5M2 fit\./);
  const bad = scalesVerdict([operand({ state: "scale_too_small" }), operand({ state: "scale_stale" }), operand({})], 3);
  assert.match(text(bad), /the scale of 1 operand was too small, that of 1 operand stale/);
  const unknown = scalesVerdict([operand({}), operand({ state: "unknown", unknown: "scales: compiled" })], 2);
  assert.equal(unknown.level, "empty");
  assert.match(text(unknown), /Of 1 module nothing is read: compiled\./);
  assert.equal(scalesVerdict([operand({ state: "unknown", unknown: "scales: compiled" })], 1).level, "empty");
  const open = /** @type {any} */ ([{ rule: "scale_stale", severity: "warning", summary: "Step 3: stale" }]);
  assert.deepEqual([scalesVerdict([operand({})], 9, open).level, text(scalesVerdict([operand({})], 9, open)).startsWith("Step 3: stale The first")], ["warning", true]);
});

test("scaled headroom is told as room, or as what is beyond the limit", () => {
  const room = /** @type {any} */ ({ scale: "room", low: -8, high: 8, worst: "least" });
  assert.equal(valueText(room, -2), "2.0 bits beyond the limit");
  assert.equal(valueText(room, 3.5), "3.5 bits free");
  assert.deepEqual(ticksOf(room).map(({ text: label }) => label), ["8 beyond", "4 beyond", "the limit", "4", "8 bits free"]);
  assert.deepEqual([stateLabel("scale_stale"), stateLabel("scale_too_small")], ["scale stale", "scale too small"]);
  assert.deepEqual([STATE.scaleStale, STATE.scaleTooSmall], [7, 8]);
});
