
import assert from "node:assert/strict";
import { test } from "node:test";

import { linkGrid, linkNote, linkProblems, linkSummary, linkVerdict, tidy } from "../../../web/pages/environment/link_matrix.js";

const NAMES = ["world_size", "ranks", "pairs", "bad_ranks", "bad_pairs", "slow_pairs", "bad_groups", "bad_hosts"];

test("whatever of a result is null is as good as missing", () => {
  const result = tidy({ ok: false, time_ns: 0, ...Object.fromEntries(NAMES.map((name) => [name, null])) });
  assert.equal(linkGrid(result, "latency_s").rows.length, 0);
  assert.equal(linkSummary(result, "latency_s").startsWith("0 pairs"), true);
  assert.deepEqual(linkProblems(result), []);
  assert.equal(linkNote(result), "");
  assert.equal(linkVerdict(result, 1).level, "critical");
});

test("a rank that cannot be makes no matrix of its size", () => {
  const pairs = [{ a: 0, b: 1, ok: true }, { a: 0, b: 1e9, ok: true }, null];
  const result = tidy({ ok: true, time_ns: 0, world_size: 1e9, pairs });
  assert.equal(linkGrid(result, "latency_s").rows.length, 2);
  assert.equal(tidy({ ok: true, time_ns: 0, world_size: 8 }).world_size, 8);
});
