
import assert from "node:assert/strict";
import { test } from "node:test";

import { frameOf, labels, pixelOf, stepTicks } from "../../../web/charts/frame.js";
import { count } from "../../../web/format/numbers.js";

/** @param {number} start @param {number} stop @param {number} [width] */
const frame = (start, stop, width = 1000) => frameOf(width, 80, { start, stop });
/** @param {ReturnType<typeof frame>} of */
const places = (of) => stepTicks(of).map(({ at }) => at);

test("an axis is labelled with round steps", () => {
  assert.deepEqual(places(frame(0, 1_000_000)), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map((n) => n * 100_000));
  assert.deepEqual(places(frame(1_234, 1_290)), [1240, 1250, 1260, 1270, 1280]);
  assert.equal(stepTicks(frame(0, 1_000_000)).at(-1)?.text, "900,000");
});

test("few steps have a label each, and never two", () => {
  assert.deepEqual(places(frame(7, 8)), [7]);
  assert.deepEqual(places(frame(5, 9)), [5, 6, 7, 8]);
  assert.deepEqual(places(frame(3, 3)), []);
});

test("labels keep their distance at any zoom and width", () => {
  for (const width of [200, 390, 1280, 1920])
    for (const span of [1, 2, 3, 7, 40, 41, 999, 12_345, 1_000_000, 2 ** 40]) {
      const of = frame(1_000_001, 1_000_001 + span, width);
      const at = places(of);
      assert.ok(at.every((place) => place >= of.range.start && place < of.range.stop));
      const gaps = at.slice(1).map((place, i) => pixelOf(place, of) - pixelOf(at[i], of));
      assert.ok(gaps.every((gap) => gap >= Math.min(75, of.plotWidth / 3)), `${width} ${span} ${gaps[0]}`);
      assert.ok(span < 4 || at.length >= 1);
    }
});

test("a label that the edge would cut is left out", () => {
  const of = frame(0, 90_001);
  assert.ok(pixelOf(90_000, of) + 12 > of.width - 12);
  assert.ok(places(of).includes(90_000));
  assert.ok(!labels(stepTicks(of), of).tickvals.includes(90_000));
  assert.deepEqual(labels(stepTicks(of), of).ticktext.slice(0, 2), ["0", "10,000"]);
});

test("a count has commas, also where it is no safe whole number", () => {
  const texts = { 0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567" };
  for (const [value, text] of Object.entries(texts)) assert.equal(count(Number(value)), text);
  assert.deepEqual([-1000, -999, 1234.5, 2 ** 60].map(count), ["-1,000", "-999", "1,234.5", "1,152,921,504,606,847,000"]);
  assert.deepEqual([null, NaN].map(count), ["not measured", "not measured"]);
});
