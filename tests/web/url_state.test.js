import assert from "node:assert/strict";
import { test } from "node:test";
import { formatState, parseState, runPath, shownRange } from "../../web/url_state.js";

test("a view survives the trip through the URL", () => {
  const view = { start: 0, stop: 500, rank: 5, step: 360, tensor: 41, kinds: ["output", "grad"], q: "ff & <b>", key: "GPU-1 2" };
  assert.deepEqual(parseState(formatState(view)), view);
});

test("one view has one URL, whatever its order", () => {
  assert.equal(formatState(parseState("?tensor=2&rank=all&step=1")), "?step=1&rank=all&tensor=2");
  assert.equal(formatState({}), "");
});

test("what is not a step is not taken for one", () => {
  const { start, stop, rank, step } = parseState("?start=-3&stop=1e9&rank=one&step=");
  assert.deepEqual([start, stop, rank, step], [null, null, null, null]);
});

test("a crossed range is no range", () => {
  const { start, stop } = parseState("?start=10&stop=10");
  assert.deepEqual([start, stop], [null, null]);
});

test("paths", () => {
  assert.equal(runPath(3, ""), "/runs/3");
  assert.equal(runPath(3, "step", { step: 12, rank: 0 }), "/runs/3/step?step=12&rank=0");
  assert.equal(runPath("a/b", "layers"), "/runs/a%2Fb/layers");
});

test("the shown range stays within the run and is never empty", () => {
  const run = { first_step: 10, last_step: 418 };
  assert.deepEqual(shownRange({ start: null, stop: null }, run), { start: 10, stop: 419 });
  assert.deepEqual(shownRange({ start: 900, stop: null }, run), { start: 418, stop: 419 });
  assert.deepEqual(shownRange({ start: 100, stop: 200 }, run), { start: 100, stop: 200 });
});
