
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { getLines } from "../../../web/api/fetch.js";

const before = { fetch: globalThis.fetch, location: globalThis.location };
/** @type {ReadableStream<Uint8Array>} */
let body;
beforeEach(() => void Object.assign(globalThis, { fetch: async () => new Response(body), location: { origin: "http://server" } }));
afterEach(() => void Object.assign(globalThis, before));

const encoded = (/** @type {string} */ text) => new TextEncoder().encode(text);

/** @param {string} text @param {number[]} cuts places in bytes */
async function linesOf(text, cuts) {
  const bytes = encoded(text);
  const ends = [0, ...cuts, bytes.length];
  body = ReadableStream.from(ends.slice(1).map((end, i) => bytes.slice(ends[i], end)));
  const lines = [];
  await getLines("/", {}, (line) => lines.push(line));
  return lines;
}

test("lines are whole wherever their bytes are cut", async () => {
  const text = '{"a":"é→😀"}\n{"b":2}\n3\n{"c":3}\n';
  const size = encoded(text).length;
  for (let first = 0; first <= size; first += 1) {
    for (const second of [first, Math.min(size, first + 1), size]) {
      assert.deepEqual(await linesOf(text, [first, second]), [{ a: "é→😀" }, { b: 2 }, 3, { c: 3 }]);
    }
  }
});

test("what follows the last line break is none", async () => {
  assert.deepEqual(await linesOf("1\n2", [1]), [1]);
  assert.deepEqual(await linesOf("", []), []);
});

test("a line is reported before the next part comes", async () => {
  const received = [];
  const seen = [];
  async function* parts() {
    yield encoded("1\n2");
    seen.push(...received);
    yield encoded("2\n");
  }
  body = ReadableStream.from(parts());
  await getLines("/", {}, (line) => received.push(line));
  assert.deepEqual([seen, received], [[1], [1, 22]]);
});

/** An answer that never ends. @param {string} line */
function endless(line) {
  const state = { isCancelled: false };
  body = new ReadableStream({ pull: (controller) => controller.enqueue(encoded(line)), cancel: () => void (state.isCancelled = true) });
  return state;
}

test("what is no JSON, and what a line's reader throws, ends the body as well", async () => {
  const unreadable = endless("{\n");
  await assert.rejects(getLines("/", {}, () => {}), { code: "bad_answer" });
  const refused = endless("1\n");
  const signal = AbortSignal.abort();
  await assert.rejects(getLines("/", {}, () => { throw new Error("no use"); }, signal), /no use/);
  assert.deepEqual([unreadable.isCancelled, refused.isCancelled], [true, true]);
});

test("a connection that breaks is a server that does not answer", async () => {
  body = new ReadableStream({ pull: (controller) => controller.error(new TypeError("network error")) });
  await assert.rejects(getLines("/", {}, () => {}), { code: "unreachable", status: 0 });
});
