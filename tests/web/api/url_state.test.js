
import assert from "node:assert/strict";
import { test } from "node:test";

import { changedState, columnKey, formatState, leftOut, onward, orderOf, parseState, pinnedLanes, runPath, shownRange, withLaneFlag, withOrder, withPinned } from "../../../web/api/url_state.js";

test("a view survives the trip through the URL", () => {
  const view = { start: 0, stop: 500, last: null, from: 1_700_000_000_000, to: 1_700_000_060_000, rank: 5, step: 360, tensor: 41, kinds: ["output", "grad"], q: "ff & <b>", key: "GPU-1 2", axis: "time",
    statistic: "exponent_-24", axes: "step,rank", sort: "worst", closed: ["blocks.0", "a & b"], against: "run:7",
    orders: ["agent-groups.faults.down", "overflow-table.of-its-type-s-limit.up"], pin: 69, measure: "step_time", rows: "dp", columns: "tp", fold: "node",
    lanes: ["waits.pin", "loss.log.smooth"] };
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

test("what no page knows is left out", () => {
  const { statistic, axes, sort, against } = parseState("?statistic=<b>&axes=rank,rank&sort=up&against=run:x");
  assert.deepEqual([statistic, axes, sort, against], ["", "", "", ""]);
});

test("orders of tables that cannot be read are left out, and each table has one", () => {
  const { orders } = parseState("?order=up&order=z-table.a.down&order=a.b.sideways&order=<b>.a.up&order=a-table.b.up&order=a-table.c.down&order=.a.up&order=a..up");
  assert.deepEqual(orders, ["a-table.b.up", "z-table.a.down"]);
  assert.equal(formatState({ orders }), "?order=a-table.b.up&order=z-table.a.down");
});

test("the order of one table is changed, and its usual one is not in the address", () => {
  const orders = withOrder(["z-table.a.down"], "a-table", { column: columnKey("Of its type's limit"), isDown: true });
  assert.deepEqual(orders, ["a-table.of-its-type-s-limit.down", "z-table.a.down"]);
  assert.deepEqual(orderOf(orders, "a-table"), { column: "of-its-type-s-limit", isDown: true });
  assert.equal(orderOf(orders, "a"), null);
  assert.deepEqual(withOrder(orders, "a-table", { column: "b", isDown: false }), ["a-table.b.up", "z-table.a.down"]);
  assert.deepEqual(withOrder(orders, "z-table", null), ["a-table.of-its-type-s-limit.down"]);
});

test("a crossed range is no range", () => {
  const { start, stop } = parseState("?start=10&stop=10");
  assert.deepEqual([start, stop], [null, null]);
});

test("a part of the time axis is left when other steps are chosen, and a crossed one is none", () => {
  const timed = parseState("?rank=1&from=1700000000000&to=1700000060000");
  assert.equal(formatState(timed), "?rank=1&from=1700000000000&to=1700000060000");
  assert.equal(formatState(changedState(timed, { axis: "time" })), "?rank=1&from=1700000000000&to=1700000060000&axis=time");
  for (const patch of [{ start: 3, stop: 9 }, { start: null, stop: null }, { last: 50 }]) assert.equal(changedState(timed, patch).from, null);
  assert.equal(formatState(changedState(timed, { last: 50 })), "?rank=1&last=50");
  assert.equal(formatState(parseState("?from=1700000060000&to=1700000000000")), "");
  assert.equal(formatState(parseState("?from=1700000060000")), "");
});

test("a link onward takes the shown steps along, and no other choice", () => {
  const shown = parseState("?rank=3&start=5&stop=9&kind=grad&q=ff&from=1&to=2&key=GPU-1");
  assert.equal(runPath(3, "step", onward(shown, { step: 7 })), "/runs/3/step?step=7&start=5&stop=9");
  assert.equal(runPath(3, "gpus", onward(parseState("?last=40"))), "/runs/3/gpus?last=40");
  assert.equal(runPath(3, "gpus", onward({})), "/runs/3/gpus");
  assert.equal(runPath(3, "gpus", onward(parseState("?pin=69&measure=cost"))), "/runs/3/gpus?pin=69", "a pinned rank stays pinned");
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

test("the newest steps are followed with a width of their own", () => {
  const run = { first_step: 10, last_step: 418 };
  const view = parseState("?last=100");
  assert.equal(formatState(view), "?last=100");
  assert.deepEqual(shownRange(view, run), { start: 319, stop: 419 });
  assert.deepEqual(shownRange(view, { ...run, last_step: 500 }), { start: 401, stop: 501 });
  assert.deepEqual(shownRange(parseState("?last=9999"), run), { start: 10, stop: 419 });
  assert.equal(parseState("?last=0").last, null);
});

test("steps that are named let go of the newest ones, and the other way round", () => {
  assert.equal(formatState(parseState("?last=100&start=5")), "?start=5");
  const following = parseState("?last=100&rank=1");
  assert.equal(formatState(changedState(following, { start: 3, stop: 9 })), "?rank=1&start=3&stop=9");
  assert.equal(formatState(changedState(following, { start: null, stop: null })), "?rank=1");
  assert.equal(formatState(changedState(parseState("?start=3&stop=9"), { last: 50 })), "?last=50");
  assert.equal(formatState(changedState(following, { rank: 2 })), "?rank=2&last=100");
});

test("lanes are pinned, moved and drawn otherwise, and what cannot be read is left out", () => {
  const { lanes } = parseState("?lane=loss.log&lane=loss.pin&lane=<b>.pin&lane=waits&lane=step_time.pin.max&lane=x.y");
  assert.deepEqual(lanes, ["loss.log", "step_time.pin.max"]);
  assert.deepEqual(withLaneFlag(lanes, "loss", "smooth"), ["loss.log.smooth", "step_time.pin.max"]);
  assert.deepEqual(withLaneFlag(lanes, "loss", "log"), ["step_time.pin.max"]);
  assert.deepEqual(withPinned(lanes, ["waits", "loss"]), ["waits.pin", "loss.pin.log", "step_time.max"]);
  assert.deepEqual(pinnedLanes(lanes), ["step_time"]);
});

test("what no view can have is said as it stands in the address", () => {
  assert.deepEqual(leftOut("?start=9&stop=2"), ["start=9", "stop=2"]);
  assert.deepEqual(leftOut("?ranks=x&rank=x&step=4"), ["ranks=x", "rank=x"]);
  assert.deepEqual(leftOut("?start=2&stop=9&rank=all&kind=output&kind=grad&lane=loss.pin&order=frames.name.up&measure=nope"), []);
  assert.deepEqual(leftOut("?start=007&q="), []);
  assert.deepEqual(leftOut(""), []);
});
