
import assert from "node:assert/strict";
import { test } from "node:test";

import { equalRanks, gpuLine, groupCaption, hangCards, hangVerdict, oddRanks, rankOrder, rankState, sequenceRows, whereText } from "../../../web/pages/collectives/hang.js";

/** @type {import("../../../web/types.js").HangGroup} */
const GROUP = { group: "default_pg", ranks: [0, 1, 2, 3], op: "all_reduce", bytes: 1048576, dtype: "float32", sequence: 41, last_enqueued: { 0: 41, 1: 41, 2: 40, 3: null }, last_completed: { 0: 40, 1: 40, 2: 40, 3: null }, missing: [2] };
/** @param {Partial<import("../../../web/types.js").HangRank>} more @returns {import("../../../web/types.js").HangRank} */
const rank = (more) => ({ rank: 0, role: "other", is_silent: false, has_ended: false, is_in_data_loader: false, silent_s: 1, last_step: 10, waits_for: null, where: null, stacks: null, gpu: null, ...more });

test("ranks that stand at the same place make one row, the missing first", () => {
  assert.deepEqual(sequenceRows(GROUP, []).map(({ ranks, enqueued, isMissing, has }) => [ranks, enqueued, isMissing, has]), [
    [[2], 40, true, "no"],
    [[3], null, false, "n/a"],
    [[0, 1], 41, false, "yes"],
  ]);
  assert.deepEqual(sequenceRows(GROUP, [1])[1].ranks, [1], "who calls something else stands apart");
  assert.equal(groupCaption(GROUP), "default_pg, 4 ranks: all_reduce of 1 MiB float32, sequence 41");
});

test("where nobody is known to wait it may be an evaluation, and is no alarm", () => {
  const hang = (/** @type {string} */ kind) => /** @type {any} */ ({ kind, text: "No step." });
  assert.deepEqual([hangVerdict(hang("busy")).level, hangVerdict(hang("absent")).level], ["warning", "critical"]);
});

test("what a rank is doing, as far as it is known", () => {
  assert.equal(rankState(rank({ role: "missing", is_silent: true, silent_s: 12 }), "silent"), "silent for 12 s, missing, at step 10");
  const waits = { sequence: 41, op: "all_reduce", bytes: 4096, dtype: "float32", waited_s: 3 };
  assert.equal(rankState(rank({ role: "waiting", waits_for: waits }), "absent"), "waiting, in all_reduce 41 (4 KiB float32), at step 10");
  assert.match(rankState(rank({ role: "missing", waits_for: waits }), "mismatch"), /^calls something else/);
  assert.equal(rankState(rank({ has_ended: true, last_step: -1 }), "ended"), "ended, before its first step");
  assert.equal(whereText({ file: "a.py", line: 3, function: "f" }), "a.py:3 in f");
  assert.equal(whereText(null), "");
});

test("a GPU that does not answer is said, one that is not known is not", () => {
  assert.equal(gpuLine({ present: 0 }), "its GPU does not answer");
  assert.equal(gpuLine({ present: 1, power_w: 120, temperature_c: null }), "GPU: power 120 W");
  assert.equal(gpuLine(null), "");
});

test("missing ranks come first, then those who wait", () => {
  const order = rankOrder([rank({ rank: 0 }), rank({ rank: 1, role: "waiting", stacks: "s" }), rank({ rank: 2, role: "missing" }), rank({ rank: 3, role: "missing", stacks: "s" })]);
  assert.deepEqual(order.map((one) => one.rank), [3, 2, 1, 0]);
});

test("the cards say how long, and never 0 for what is not known", () => {
  const hang = { text: "", kind: "absent", since_ns: 0, step: null, missing: [2], silent: [], waiting: [0, 1], groups: [], mismatch: [], ranks: [] };
  assert.deepEqual(hangCards(hang, 65e9).map(({ value }) => value), ["ranks elsewhere in their code", "1 min", "rank 2", "none", "ranks 0 and 1"]);
  assert.equal(hangCards({ ...hang, since_ns: null }, 65e9)[1].value, "n/a");
  assert.deepEqual(oddRanks({ ...hang, culprits: [1] }), []);
  assert.deepEqual(oddRanks({ ...hang, kind: "mismatch", culprits: [1] }), [1]);
});

test("a thousand ranks that stand at one place are one, whatever their threads are called", () => {
  const where = { file: "train.py", line: 71, function: "load" };
  const all = Array.from({ length: 1024 }, (_, i) => rank({ rank: i, is_silent: i !== 5, silent_s: 8 + i / 1000, where, stacks: `Thread 0x${(4096 + i).toString(16)} (most recent call first)\n  line 71` }));
  const groups = equalRanks(all, "silent");
  assert.deepEqual(groups.map(({ ranks }) => ranks.length), [1023, 1]);
  assert.deepEqual(equalRanks([rank({ rank: 0, stacks: "line 70" }), rank({ rank: 1, stacks: "line 71" })], "silent").map(({ ranks }) => ranks), [[0], [1]]);
});
