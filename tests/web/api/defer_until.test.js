
import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { deferUntil } from "../../../web/api/live.js";

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** @param {Promise<unknown>} work */
function watch(work) {
  const seen = { over: false, failed: false };
  deferUntil(work).then(() => (seen.over = true), () => (seen.failed = true));
  return seen;
}

test("it is over once the work is, and fails with it", async () => {
  const never = watch(new Promise(() => {}));
  const done = watch(Promise.resolve());
  const failed = watch(Promise.reject(new Error("no")));
  await turn();
  assert.deepEqual([never.over, done.over, failed.over], [false, true, false]);
  assert.deepEqual([never.failed, done.failed, failed.failed], [false, false, true]);
});

test("nothing waits for what takes long", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const never = watch(new Promise(() => {}));
  mock.timers.tick(299);
  await turn();
  assert.equal(never.over, false);
  mock.timers.tick(1);
  await turn();
  assert.equal(never.over, true);
  mock.timers.reset();
});
