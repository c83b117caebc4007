
import assert from "node:assert/strict";
import { test } from "node:test";

import { costLines, usualCost } from "../../../web/pages/agent/agent.js";
import { accounts, agentGroups, agentVerdict, hasTrouble, ranksText, totals, whyDropped } from "../../../web/pages/agent/agent_text.js";

/** @param {number} rank @param {Partial<import("../../../web/types.js").RankInfo>} [fields] @returns {import("../../../web/types.js").RankInfo} */
const agent = (rank, fields = {}) => ({
  rank, state: "live", host: `n${rank >> 3}`, local_rank: rank % 8, incarnation: 1, last_step: 9, last_seen_ns: 0, device: "cuda:0",
  dropped: {}, faults: {}, not_observed: {}, not_fused: {}, level: null, failure: null, ...fields,
});
const MANY = Array.from({ length: 1024 }, (_, rank) => {
  if (rank === 700) return agent(rank, { faults: { "output of a": 2 } });
  if (rank % 100 === 0) return agent(rank, { dropped: { queue_full: rank + 1 } });
  return agent(rank, rank === 5 ? { level: "outputs only: 3 % of the step" } : {});
});
const verdictText = (/** @type {import("../../../web/types.js").RankInfo[]} */ ranks) => agentVerdict(ranks).parts[0][1];

test("1,024 agents stand in as many rows as they say different things, the worst first", () => {
  const groups = agentGroups(MANY);
  assert.deepEqual(groups.map(({ ranks }) => ranks.length), [1, 10, 1, 1012]);
  assert.deepEqual(groups[0].faults, ["output of a"]);
  assert.equal(groups[1].droppedCount, [0, 100, 200, 300, 400, 500, 600, 800, 900, 1000].reduce((sum, rank) => sum + rank + 1, 0));
  assert.match(String(groups[2].level), /outputs only/);
  assert.equal(groups[3].hosts.length, 128);
});

test("how often differs within a row, what does not", () => {
  assert.equal(agentGroups([agent(0, { dropped: { a: 1, b: 2 } }), agent(1, { dropped: { b: 9, a: 1 } })]).length, 1);
  assert.equal(agentGroups([agent(0, { not_observed: { head: "sparse" } }), agent(1, { not_observed: { head: "lazy" } })]).length, 2);
  assert.equal(agentGroups([agent(0), agent(1, { state: "stale" })]).length, 2);
});

test("drops are added up by reason, with the rank that has most", () => {
  const [first, second] = totals([agent(0, { dropped: { queue_full: 3 } }), agent(4, { dropped: { queue_full: 9, odd: "x" } })], "dropped");
  assert.deepEqual([first.reason, first.total, first.ranks, first.worst, first.most], ["queue_full", 12, [0, 4], 4, 9]);
  assert.deepEqual([second.reason, second.total, second.why], ["odd", 1, ""]);
  assert.match(whyDropped("spool_full"), /spool/);
});

test("a module that is not observed is one line for all its ranks, and one for each why", () => {
  const rows = accounts([agent(0, { not_observed: { head: "sparse" } }), agent(1, { not_observed: { head: "sparse", tail: "lazy" } }), agent(2, { not_observed: { head: "lazy" } })], "not_observed");
  assert.deepEqual(rows.map(({ what, why, ranks }) => [what, why, ranks]), [["head", "sparse", [0, 1]], ["tail", "lazy", [1]], ["head", "lazy", [2]]]);
  assert.deepEqual(accounts([{ ...agent(0), not_fused: undefined }], "not_fused"), []);
});

test("the sentence says the worst first", () => {
  assert.equal(verdictText([]), "No agent has attached.");
  assert.equal(verdictText([agent(0)]), "Nothing was dropped, and no agent failed.");
  assert.equal(verdictText([agent(0, { not_observed: { head: "sparse" } })]), "Nothing was dropped, and no agent failed. 1 module or parameter is not observed.");
  assert.match(verdictText([agent(0, { not_observed: { head: "sparse", "head.weight": "no gradient has reached it" } })]), / 2 modules and parameters are not observed\.$/);
  assert.match(verdictText(MANY), /^The agent failed in 1 place: output of a on rank 700\. Dropped: 4,\d{3} records, most for queue_full\. Not all is recorded on rank 5: outputs only/);
  assert.equal(agentVerdict(MANY).level, "warning");
  assert.equal(agentVerdict([agent(0)], { time_s: 0.003, share: 0.02 }).parts[0][1], "Nothing was dropped, and no agent failed. Agent overhead per step: 3 ms (2 %).");
  assert.deepEqual([hasTrouble([agent(0), agent(1, { state: "stale" })]), hasTrouble([agent(0, { not_observed: { head: "x" } })])], [false, true]);
  assert.equal(ranksText([0, 1, 2]), "ranks 0-2");
  assert.equal(ranksText(MANY.map(({ rank }) => rank)), "1,024 ranks: 0-1023");
});

/** @param {number[]} x @param {number[]} y @returns {any} */
const answer = (x, y) => ({ series: [{ name: "", x, y }], markSteps: [], meta: { start: 0, stop: 40, steps_per_column: 1, note: "each column: one step" } });

test("what the agent costs is the median of the steps that were measured", () => {
  const whole = answer([0, 17, 34, 35], [0.1, 0.2, 0.1, 9]);
  assert.deepEqual(usualCost(answer([0, 17, 34], [0.001, 0.004, 0.003]), whole), { time_s: 0.003, share: 0.02, steps: 3 });
  assert.equal(usualCost(answer([], []), whole), null);
  assert.equal(usualCost(null, whole), null);
  assert.equal(usualCost(answer([3], [0.001]), whole)?.share, null, "that step's own time is not known");
});

test("a figure of both, in milliseconds, also where one was never sent", () => {
  const { series, meta } = costLines([answer([0, 17], [0.001, 0.002]), null]);
  assert.deepEqual(series.map(({ y }) => y), [[1, 2], []]);
  assert.equal(meta.note, "each column: one step");
});
