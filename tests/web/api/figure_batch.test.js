
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { ApiError } from "../../../web/api/fetch.js";
import { figure } from "../../../web/api/client.js";

const before = { fetch: globalThis.fetch, location: globalThis.location };
/** @type {{alone: unknown[], together: unknown[], lines: number}} what was asked for; of several figures so many are answered */
let server;

/** The text of a figure is its answer. */
async function answered(path, { signal }) {
  const { pathname, search, searchParams } = new URL(path, "http://server");
  const run = pathname.split("/")[4];
  const texts = searchParams.getAll("figure");
  if (texts.length === 0) {
    const text = pathname.split("/").at(-1) + search;
    server.alone.push([run, text, signal]);
    return Response.json({ text });
  }
  server.together.push([run, texts, signal]);
  return new Response(texts.slice(0, server.lines).map((text, number) => `${JSON.stringify(lineOf(text, number))}\n`).join(""));
}

const lineOf = (text, number) => (text.startsWith("none") ? { number, status: 404, refused: { code: "unknown_figure", error: "none" } } : { number, answer: { text } });

beforeEach(() => {
  server = { alone: [], together: [], lines: Infinity };
  Object.assign(globalThis, { fetch: answered, location: { origin: "http://server" } });
});
afterEach(() => void Object.assign(globalThis, before));

test("what is asked for in one turn is asked for together", async () => {
  const signal = new AbortController().signal;
  const first = await Promise.all([figure("1", "loss", {}, signal), figure("1", "layers", { rows: 3 }, signal)]);
  assert.deepEqual(first, [{ text: "loss" }, { text: "layers?rows=3" }]);
  await Promise.all([figure("1", "waits", {}, signal), figure("1", "phases", {}, signal)]);
  assert.deepEqual(server.together, [["1", ["loss", "layers?rows=3"], signal], ["1", ["waits", "phases"], signal]]);
  assert.deepEqual(server.alone, []);
});

test("one alone is asked for alone", async () => {
  assert.deepEqual(await figure("1", "loss", { start: 3 }), { text: "loss?start=3" });
  assert.deepEqual([server.alone, server.together], [[["1", "loss?start=3", undefined]], []]);
});

test("other runs, and what ends by another signal, are asked for apart", async () => {
  const [a, b] = [new AbortController().signal, new AbortController().signal];
  await Promise.all([figure("1", "loss", {}, a), figure("2", "loss", {}, a), figure("1", "loss", {}, b), figure("1", "waits", {}, a)]);
  assert.deepEqual(server.together, [["1", ["loss", "waits"], a]]);
  assert.deepEqual(server.alone, [["2", "loss", a], ["1", "loss", b]]);
});

test("an answer has no more figures than the server gives, and an address no more letters than proxies take", async () => {
  await Promise.all(Array.from({ length: 50 }, (_, i) => figure("1", "series", { q: i })));
  assert.deepEqual(server.together.map(([, texts]) => texts.length), [24, 24, 2]);
  await Promise.all([figure("1", "layers", { closed: "é".repeat(600) }), figure("1", "layers", { closed: "e".repeat(600) })]);
  assert.equal(server.together.length, 3);
  assert.equal(server.alone.length, 2);
});

test("a failure is that of all that were not answered", async () => {
  server.lines = 1;
  const results = await Promise.allSettled([figure("1", "loss", {}), figure("1", "waits", {}), figure("1", "layers", {})]);
  assert.deepEqual(results.map(({ status, reason }) => [status, reason?.code]), [["fulfilled", undefined], ["rejected", "unreachable"], ["rejected", "unreachable"]]);
});

test("a figure that the server refuses leaves the others", async () => {
  const [one, other] = await Promise.allSettled([figure("1", "none", {}), figure("1", "waits", {})]);
  assert.deepEqual([one.reason.code, one.reason.status, other.value], ["unknown_figure", 404, { text: "waits" }]);
  assert.ok(one.reason instanceof ApiError);
});
