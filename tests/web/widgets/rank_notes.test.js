
import assert from "node:assert/strict";
import { test } from "node:test";

import { rankNotes } from "../../../web/widgets/run_page.js";

const SECOND = 1e9;
const rank = (/** @type {number} */ number, /** @type {object} */ more = {}) => /** @type {any} */ ({
  rank: number, state: "live", last_step: 9, last_seen_ns: 100 * SECOND, dropped: {}, faults: {}, not_observed: {}, ...more,
});

test("a healthy run has nothing to say", () => {
  assert.deepEqual(rankNotes({ ranks: [rank(0)], missing_ranks: [] }, 101 * SECOND), []);
});

test("what is missing is said plainly", () => {
  const ranks = [
    rank(0, { not_observed: { lm_head: "sparse tensor" } }),
    rank(1, { state: "stale", last_seen_ns: 60 * SECOND, dropped: { queue_full: 3 }, not_observed: { lm_head: "sparse tensor" } }),
    rank(2, { level: "5.0 % of a step is the agent's; the budget is 3 %", not_fused: { "cuda:0": "no triton" }, faults: { hooks: 1 }, failure: "RuntimeError: out of memory\n  at line 3" }),
  ];
  assert.deepEqual(rankNotes({ ranks, missing_ranks: [3] }, 100 * SECOND), [
    "rank 3 has not reported",
    "rank 2 failed: RuntimeError: out of memory",
    "rank 1 silent for 40 s, after step 9",
    "rank 2: the agent failed in hooks (1 time)",
    "rank 1 dropped 3 records: queue_full",
    "rank 2 records less: 5.0 % of a step is the agent's; the budget is 3 %",
    "rank 2 reads cuda:0 more slowly than it could: no triton",
    "lm_head is not observed (sparse tensor) on ranks 0 and 1",
  ]);
});

test("two jobs that send as one run are distinguished", () => {
  const advice = "are there two jobs of one name? RANGEWATCH_RUN gives one a name of its own";
  const ranks = [rank(0, { also_live: 0 }), rank(1, { also_live: 1 }), rank(2, { also_live: 2, also_live_hosts: ["node7", "node9"] })];
  assert.deepEqual(rankNotes({ ranks, missing_ranks: [] }, 100 * SECOND), [`another process also sends as rank 1: ${advice}`, `2 other processes on node7, node9 also send as rank 2: ${advice}`]);
  const many = Array.from({ length: 1024 }, (_, i) => rank(i, { also_live: 1, also_live_hosts: [i < 512 ? "node7" : "node8"] }));
  assert.deepEqual(rankNotes({ ranks: many, missing_ranks: [] }, 100 * SECOND), [`another process on node7 also sends as ranks 0-511: ${advice}`, `another process on node8 also sends as ranks 512-1023: ${advice}`]);
});

test("the model itself has a name", () => {
  const ranks = [rank(0, { not_observed: { "": "output: integer tensor" } })];
  assert.deepEqual(rankNotes({ ranks, missing_ranks: [] }, 100 * SECOND), ["(the model) is not observed (output: integer tensor) on rank 0"]);
});

test("a thousand silent ranks are one line", () => {
  const ranks = Array.from({ length: 1024 }, (_, i) => rank(i, { state: "stale", last_step: i === 7 ? 8 : 9, last_seen_ns: (i < 512 ? 60 : 50) * SECOND }));
  assert.deepEqual(rankNotes({ ranks, missing_ranks: [] }, 100 * SECOND), ["ranks 0-6 and 8-1023 silent for 40 s to 50 s, after step 9", "rank 7 silent for 40 s, after step 8"]);
  const dropped = [0, 1, 2].map((i) => rank(i, { dropped: { queue_full: 3 }, level: "less" }));
  assert.deepEqual(rankNotes({ ranks: dropped, missing_ranks: [] }, 0), ["ranks 0-2 dropped each 3 records: queue_full", "ranks 0-2 record less: less"]);
});
