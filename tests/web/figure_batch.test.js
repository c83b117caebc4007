
import assert from "node:assert/strict";
import { test } from "node:test";

import { createFigureBatch } from "../../web/api/client.js";

/** Batches of a server that answers with the text it was asked for. */
function recorded({ fails = null } = {}) {
  const alone = [];
  const together = [];
  const one = async (run, text, signal) => {
    alone.push([run, text, signal]);
    return { text };
  };
  const several = async (run, wanted, signal) => {
    together.push([run, wanted.map(({ text }) => text), signal]);
    wanted[0].resolve({ text: wanted[0].text });
    if (fails) throw fails;
    for (const { text, resolve } of wanted.slice(1)) resolve({ text });
  };
  return { alone, together, figure: createFigureBatch(one, several) };
}

test("what is asked for in one turn is asked for together", async () => {
  const { alone, together, figure } = recorded();
  const signal = new AbortController().signal;
  const first = await Promise.all([figure("1", "loss", signal), figure("1", "layers?rows=3", signal)]);
  assert.deepEqual(first, [{ text: "loss" }, { text: "layers?rows=3" }]);
  await Promise.all([figure("1", "waits", signal), figure("1", "phases", signal)]);
  assert.deepEqual(together, [["1", ["loss", "layers?rows=3"], signal], ["1", ["waits", "phases"], signal]]);
  assert.deepEqual(alone, []);
});

test("one alone is asked for alone", async () => {
  const { alone, together, figure } = recorded();
  assert.deepEqual(await figure("1", "loss?start=3"), { text: "loss?start=3" });
  assert.deepEqual([alone, together], [[["1", "loss?start=3", undefined]], []]);
});

test("other runs, and what ends by another signal, are asked for apart", async () => {
  const { alone, together, figure } = recorded();
  const [a, b] = [new AbortController().signal, new AbortController().signal];
  await Promise.all([figure("1", "loss", a), figure("2", "loss", a), figure("1", "loss", b), figure("1", "waits", a)]);
  assert.deepEqual(together, [["1", ["loss", "waits"], a]]);
  assert.deepEqual(alone, [["2", "loss", a], ["1", "loss", b]]);
});

test("an answer has no more figures than the server gives, and an address no more letters than proxies take", async () => {
  const { together, alone, figure } = recorded();
  await Promise.all(Array.from({ length: 50 }, (_, i) => figure("1", `series?q=${i}`)));
  assert.deepEqual(together.map(([, texts]) => texts.length), [24, 24, 2]);
  await Promise.all([figure("1", `layers?closed=${"é".repeat(600)}`), figure("1", `layers?closed=${"e".repeat(600)}`)]);
  assert.equal(together.length, 3);
  assert.equal(alone.length, 2);
});

test("a failure is that of all that were not answered", async () => {
  const fails = new Error("gone");
  const { figure } = recorded({ fails });
  const found = await Promise.allSettled([figure("1", "loss"), figure("1", "waits"), figure("1", "layers")]);
  assert.deepEqual(found.map(({ status }) => status), ["fulfilled", "rejected", "rejected"]);
  assert.equal(found[1].reason, fails);
});
