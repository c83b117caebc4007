
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";

import { createRefresher } from "../../../web/api/live.js";

/** One load, as the test ends it. @type {(() => void)[]} */
let loads = [];
/** @type {ReturnType<typeof createRefresher>} */
let refresher;
let now = 0;

/** Time passes, and what waits for a promise goes on. @param {number} ms */
async function pass(ms) {
  now += ms;
  mock.timers.tick(ms);
  await settled();
}

async function settled() {
  for (let i = 0; i < 5; i++) await Promise.resolve();
}

/** The load under way ends. */
async function end() {
  loads[loads.length - 1]();
  await settled();
}

beforeEach(() => {
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(performance, "now", () => now);
  Object.assign(globalThis, { document: { hidden: false } });
  loads = [];
  refresher = createRefresher(() => new Promise((resolve) => void loads.push(() => resolve(undefined))), () => true);
});

afterEach(() => {
  refresher.stop();
  mock.timers.reset();
  mock.restoreAll();
});

test("the first change after a quiet time is loaded at once", async () => {
  refresher.now();
  await end();
  await pass(5_000);
  refresher.soon();
  await pass(0);
  assert.equal(loads.length, 2);
});

test("changes that come soon after a load wait for the gap, as one", async () => {
  refresher.now();
  await pass(20);
  await end();
  await pass(100);
  refresher.soon();
  refresher.soon();
  await pass(299);
  assert.equal(loads.length, 1);
  await pass(1);
  assert.equal(loads.length, 2);
});

test("changes during a load become one more; a slow one is given as much rest as it took", async () => {
  refresher.now();
  await pass(3_000);
  refresher.soon();
  refresher.soon();
  await end();
  await pass(2_999);
  assert.equal(loads.length, 1);
  await pass(1);
  assert.equal(loads.length, 2);
  await end();
  await pass(9_000);
  assert.equal(loads.length, 2);
});

test("who asks after the page was left is not heard", async () => {
  refresher.now();
  refresher.stop();
  refresher.now();
  refresher.soon();
  await pass(15_000);
  assert.equal(loads.length, 1);
});

test("a page that is not looked at loads nothing", async () => {
  refresher.now();
  await end();
  Object.assign(globalThis, { document: { hidden: true } });
  await pass(5_000);
  refresher.soon();
  await pass(15_000);
  assert.equal(loads.length, 1);
});

test("what a load that failed had begun is ended before the next", async () => {
  const signals = [];
  const failing = createRefresher(async (signal) => {
    signals.push(signal);
    throw new Error("no answer");
  }, () => true);
  failing.now();
  await settled();
  assert.deepEqual([signals.length, signals[0].aborted], [1, true]);
  await pass(3_000);
  assert.deepEqual([signals.length, signals[1].aborted], [2, true], "and it is tried again");
  failing.stop();
});
