
import assert from "node:assert/strict";
import { test } from "node:test";

import { throttle } from "../../../web/api/throttle.js";

test("an answer is cached for a while, another question is asked at once", async () => {
  let asked = 0;
  const ask = throttle(async (/** @type {string} */ key) => `${key}${(asked += 1)}`, (key) => key, 60_000);
  assert.deepEqual([await ask("a"), await ask("a"), await ask("b"), await ask("a")], ["a1", "a1", "b2", "a3"]);
});

test("what is answered at once is asked for again at once, and a failure is not cached", async () => {
  let asked = 0;
  const ask = throttle(async () => {
    asked += 1;
    if (asked === 1) throw new Error("no");
    return asked;
  }, () => "");
  await assert.rejects(ask());
  assert.equal(await ask(), 2);
  await new Promise((later) => setTimeout(later, 20));
  assert.equal(await ask(), 3);
});
