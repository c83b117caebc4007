
import assert from "node:assert/strict";
import { test } from "node:test";

import { barAt, callText, movedCall, ticks, timelineOf } from "../../../web/pages/collectives/call_timeline.js";
import { leftOutLine, sourceLines, stepWithin, waitCards, waitVerdict, whyNone } from "../../../web/pages/collectives/collectives.js";
import { costGrid, costText, costsOf, equalGroups, rankRows, rowText } from "../../../web/pages/collectives/costs.js";
import { sorted } from "../../../web/widgets/tables/sorted_table.js";

/** @type {any} */
const ANSWER = {
  start: 300, stop: 302, ranks: [0, 5], sources: [], left_out: { broadcast: 3, send: 0 }, coverage: 0.98, steps: [300, 301], table: [{ count: 7 }],
  cost_to_others_s: [[0, 0], [0.03, null]], wait_s: [[0.03, 0.03], [0, null]], by_rank: [],
  verdict: { rank: 5, class: "non-communication slow", where: "data loader", cost_s: 0.03, share: 0.94, since_step: 210, text: "The others wait for rank 5." },
  why_no_verdict: null,
};
const call = (/** @type {Partial<import("../../../web/types.js").Call>} */ more) => ({
  group: "default_pg", op: "all_reduce", dtype: "float32", bytes: 1048576, sequence: 1, begin_s: 0, duration_s: 0.01, wait_s: 0, bucket: null, parameters: [], ...more,
});

test("the verdict comes with its evidence; without one the reason does", () => {
  const { level, parts, links } = waitVerdict(ANSWER, "3");
  assert.deepEqual([level, parts], ["warning", [["text", "The others wait for rank 5."]]]);
  assert.equal(links[0].path, "/runs/3/gpu?rank=5");
  assert.deepEqual(waitVerdict({ ...ANSWER, verdict: null, why_no_verdict: "No straggler: x" }, "3"), { level: "ok", parts: [["text", "No straggler: x"]], links: [] });
  assert.equal(waitVerdict({ ...ANSWER, verdict: { ...ANSWER.verdict, rank: null } }, "3").links.length, 0, "slow communication is no rank's");
  assert.match(waitVerdict(ANSWER, "3", { last: 50 }).links[0].path, /\?rank=5&last=50$/);
  assert.deepEqual(waitCards(ANSWER).map(({ value }) => value), ["rank 5", "data loader", "30 ms", "7"]);
});

test("late ranks of one host are named as the host, with the way to each", () => {
  const late = { ...ANSWER, verdict: { ...ANSWER.verdict, rank: null, host: "node1", ranks: [4, 5] } };
  assert.deepEqual(waitVerdict(late, "3").links.map(({ label }) => label), ["GPU of rank 4", "GPU of rank 5"]);
  assert.equal(waitCards(late)[0].value, "host node1");
  assert.equal(waitCards({ ...late, verdict: { ...late.verdict, host: null, ranks: [] } })[0].value, "nobody");
});

/** @type {any} */
const FIGURE = {
  figure: { data: [{ name: "wait_s", x0: 300, dx: 1, z: [[0.03, 0.03], [0, null]] }] },
  meta: { start: 300, stop: 302, steps_per_column: 1, note: "each column: one step", rows: [{ label: "rank 0", rank: 0 }, { label: "rank 5", rank: 5 }], delay_s: [[0, 0], [0.03, null]] },
};

test("what is not known is no 0 in the heatmap", () => {
  const costs = costsOf(FIGURE);
  const { cell, rows, columns } = costGrid(costs);
  assert.deepEqual([rows, columns], [["rank 0", "rank 5"], ["300", "301"]]);
  assert.deepEqual([cell(1, 0), cell(1, 1), cell(0, 0), cell(9, 9)], [0.03, null, 0, null]);
  assert.equal(costText(costs, { row: 1, column: 1 }), "rank 5, step 301: cost each of the others n/a, waited n/a itself");
  assert.equal(costText(costs, { row: 1, column: 0 }), "rank 5, step 300: cost each of the others 30 ms, waited 0 ms itself");
});

test("columns of several steps lead to the step looked at, within those shown", () => {
  const wide = { ...FIGURE, figure: { data: [{ ...FIGURE.figure.data[0], x0: 4.5, dx: 10, z: [[0, 0], [0, 0]] }] }, meta: { ...FIGURE.meta, start: 0, stop: 15 } };
  assert.deepEqual(costsOf(wide).steps, [9, 14]);
});

test("the one step stays within those shown", () => {
  assert.equal(stepWithin(null, { start: 100, stop: 200 }, [150, 180]), 180, "the last with records");
  assert.equal(stepWithin(null, { start: 100, stop: 200 }, []), 199);
  assert.equal(stepWithin(634, { start: 100, stop: 200 }, [150]), 199);
  assert.equal(stepWithin(5, { start: 100, stop: 200 }, [150]), 100);
  assert.equal(stepWithin(120, { start: 100, stop: 200 }, [150]), 120);
});

test("equal ranks are one row, and of many those that do not stand out are", () => {
  const waits = (/** @type {number} */ rank, late = false) => ({ rank, last_share: late ? 1 : 0, cost_to_others_s: late ? 0.09 : 0, cost_s: late ? 0.03 : 0, stands_out: late, wait_s: late ? 0 : 0.03 + rank * 1e-9 });
  const few = rankRows([0, 1, 2, 3].map((rank) => waits(rank, rank === 2)), null);
  assert.deepEqual(few.map((row) => [rowText(row), row.cost]), [["ranks 0, 1 and 3", "0 ms"], ["rank 2", "30 ms"]]);
  const many = rankRows(Array.from({ length: 1024 }, (_, rank) => waits(rank, rank === 69)), 7);
  assert.deepEqual(many.map((row) => [rowText(row), row.last, row.cost, row.wait]), [["rank 7", "0 %", "0 ms", "30 ms"], ["rank 69", "100 %", "30 ms", "0 ms"], ["1,022 others: median", "0 %", "0 ms", "30 ms"]]);
  assert.equal(waitCards(ANSWER)[2].value, "30 ms", "as the table has it");
});

test("groups whose collectives took the same are one row", () => {
  const row = { group: "tp 0", ranks: 8, op: "all_reduce", count: 4, duration_p50_s: 0.001 };
  assert.deepEqual(equalGroups([row, { ...row, group: "tp 1" }, { ...row, group: "dp", ranks: 128 }]).map(({ groups }) => groups), [["tp 0", "tp 1"], ["dp"]]);
});

test("of the collectives of a thousand ranks the late one has a row of its own", () => {
  const ranks = Array.from({ length: 1024 }, (_, rank) => ({ rank, collectives: [call({ wait_s: rank === 69 ? 0 : 0.02, duration_s: 0.021 })] }));
  const { rows } = timelineOf({ step: 1, first_step: 0, last_step: 1, ranks });
  assert.deepEqual(rows.map(({ name }) => name), ["rank 69", "1,023 others"]);
  assert.deepEqual(timelineOf({ step: 1, first_step: 0, last_step: 1, ranks }, 3).rows.map(({ name }) => name), ["rank 3", "rank 69", "1,022 others"]);
});

test("how ranks time their collectives is said once for all that do alike", () => {
  const source = (/** @type {number} */ rank, /** @type {string} */ rung, why = "w") => ({ rank, rung, why });
  const lines = sourceLines([source(0, "ddp"), source(1, "ddp"), source(2, "hidden"), source(3, "constructor", "")]);
  assert.equal(lines.length, 3);
  assert.match(lines[0], /^Ranks 0 and 1: DDP/);
  assert.match(lines[1], /^Rank 2: hidden under CUDA graphs/);
  assert.equal(lines[2], "Rank 3: constructor", "an unknown method is shown as it is");
  assert.match(leftOutLine(ANSWER.left_out), /: broadcast \(3\)\./);
  assert.equal(leftOutLine({ send: 0 }), "");
  assert.match(whyNone([source(0, "step_level")]).join(" "), /only whole steps/);
});

test("bars that overlap lie side by side, and an unknown duration is no wait", () => {
  const calls = [call({}), call({ begin_s: 0.005, duration_s: 0.01, wait_s: 0.004, sequence: 2 }), call({ begin_s: 0.02, duration_s: null, wait_s: null, sequence: 3 })];
  const timeline = timelineOf({ step: 1, first_step: 0, last_step: 1, ranks: [{ rank: 0, collectives: calls }, { rank: 1, collectives: [] }] });
  const [first, second, third] = timeline.rows[0].bars;
  assert.deepEqual([first.track, second.track, third.track], [0, 1, 0]);
  assert.deepEqual([timeline.tracks, timeline.span_s], [2, 0.02]);
  assert.ok(Math.abs(second.waited_s - 0.009) < 1e-12);
  assert.equal(third.to_s, third.from_s);
  assert.match(callText(timeline, { row: 0, at: 2 }), /duration not known/);
  assert.match(callText(timeline, { row: 0, at: 1 }), /10 ms, of that 4 ms waiting/);
  assert.deepEqual(barAt(timeline, 0, 0.0195, 0.001), { row: 0, at: 2 });
  assert.equal(barAt(timeline, 0, 0.017, 0.001), null);
  assert.equal(barAt(timeline, 1, 0, 1), null);
});

test("the axis has round times within the step", () => {
  assert.deepEqual(ticks(0.0861, 9).map((s) => Math.round(s * 1e3)), [0, 10, 20, 30, 40, 50, 60, 70, 80]);
  assert.deepEqual(ticks(0.0861, 3).map((s) => Math.round(s * 1e3)), [0, 50]);
  assert.deepEqual(ticks(1e-6, 2).length, 3);
});

test("arrows walk from collective to collective", () => {
  const timeline = timelineOf({ step: 1, first_step: 0, last_step: 1, ranks: [0, 1, 2].map((rank) => ({ rank, collectives: rank === 1 ? [] : [call({}), call({ begin_s: 1 })] })) });
  assert.deepEqual(movedCall(timeline, null, "ArrowRight"), { row: 0, at: 0 });
  assert.deepEqual(movedCall(timeline, { row: 0, at: 0 }, "ArrowRight"), { row: 0, at: 1 });
  assert.deepEqual(movedCall(timeline, { row: 0, at: 1 }, "ArrowDown"), { row: 2, at: 1 }, "a rank without any is passed over");
  assert.deepEqual(movedCall(timeline, { row: 2, at: 1 }, "ArrowDown"), { row: 2, at: 1 });
  assert.equal(movedCall(timeline, null, "Enter"), null);
});

test("unknown comes last, however it is sorted", () => {
  const rows = [{ v: 2 }, { v: null }, { v: 10 }];
  assert.deepEqual(sorted(rows, ({ v }) => v, true).map(({ v }) => v), [10, 2, null]);
  assert.deepEqual(sorted(rows, ({ v }) => v, false).map(({ v }) => v), [2, 10, null]);
  assert.deepEqual(sorted(["rank 10", "rank 9"], (name) => name, false), ["rank 9", "rank 10"]);
});
