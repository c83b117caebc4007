
import assert from "node:assert/strict";
import { test } from "node:test";

import { createFirstSeen, oldest } from "../../../web/api/fetch.js";

test("the oldest count of one server stands for all answers", () => {
  assert.equal(oldest(["a.12"]), "a.12");
  assert.equal(oldest(["a.12", "a.9", "a.10"]), "a.9");
});

test("of several servers, of none and of one that does not say it is not known", () => {
  assert.equal(oldest(["a.1", "b.1"]), null);
  assert.equal(oldest(["a.1", null]), null);
  assert.equal(oldest([null, "a.1"]), null);
  assert.equal(oldest(["a.x"]), null);
  assert.equal(oldest([]), null);
});

test("it waits for all that were asked at once, and for no later one", async () => {
  const { seen, asked, answered } = createFirstSeen();
  asked();
  asked();
  answered("a.7");
  let resolved = false;
  void seen.then(() => (resolved = true));
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(resolved, false);
  answered("a.5"); // it was read first
  asked();
  answered("a.2");
  assert.equal(await seen, "a.5");
});

test("a page that stays open for days goes on asking", async () => {
  const { seen, asked, answered } = createFirstSeen();
  for (let i = 0; i < 300_000; i += 1) {
    asked();
    answered(`a.${i}`);
  }
  assert.equal(await seen, "a.0");
});
