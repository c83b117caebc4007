
import assert from "node:assert/strict";
import { test } from "node:test";

import { eachLine } from "../../web/api/fetch.js";

/** @param {string} text @param {number[]} cuts places in bytes */
function bodyOf(text, cuts) {
  const bytes = new TextEncoder().encode(text);
  const ends = [0, ...cuts, bytes.length];
  const parts = ends.slice(1).map((end, i) => bytes.slice(ends[i], end));
  return ReadableStream.from(parts);
}

/** @param {string} text @param {number[]} cuts */
async function linesOf(text, cuts) {
  const found = [];
  await eachLine(bodyOf(text, cuts), (line) => found.push(line));
  return found;
}

test("lines are whole wherever their bytes are cut", async () => {
  const text = '{"a":"é→😀"}\n{"b":2}\n\n{"c":3}\n';
  const size = new TextEncoder().encode(text).length;
  for (let first = 0; first <= size; first += 1) {
    for (const second of [first, Math.min(size, first + 1), size]) {
      assert.deepEqual(await linesOf(text, [first, second]), ['{"a":"é→😀"}', '{"b":2}', "", '{"c":3}']);
    }
  }
});

test("what follows the last line break is none", async () => {
  assert.deepEqual(await linesOf("one\ntw", [2]), ["one"]);
  assert.deepEqual(await linesOf("", []), []);
});

test("a line is told before the next part comes", async () => {
  const told = [];
  const seen = [];
  async function* parts() {
    yield new TextEncoder().encode("one\ntw");
    seen.push(...told);
    yield new TextEncoder().encode("o\n");
  }
  await eachLine(ReadableStream.from(parts()), (line) => told.push(line));
  assert.deepEqual([seen, told], [["one"], ["one", "two"]]);
});

test("what a line's reader throws ends the body as well", async () => {
  let isCancelled = false;
  const body = new ReadableStream({
    pull: (controller) => controller.enqueue(new TextEncoder().encode("one\n")),
    cancel: () => void (isCancelled = true),
  });
  await assert.rejects(eachLine(body, () => { throw new Error("unreadable"); }), /unreadable/);
  assert.equal(isCancelled, true);
});
