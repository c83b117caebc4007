
import assert from "node:assert/strict";
import { test } from "node:test";

import { clockAxis, clockText, clockTicks, isOverMidnight } from "../../../web/charts/frame.js";
import { choose, eventTime, spanOf, timesPatch } from "../../../web/pages/gpus/gpu_timeline.js";
import { eventModel, throttleModel } from "../../../web/widgets/gpu/gpu_lanes.js";
import { bitBands, column, constant, isLongInOneStep, linesOf, onTime, places, rangeOf, stepsOf, sum, timeShare, timesOf } from "../../../web/widgets/gpu/gpu_samples.js";
import { bitNames, gpuVerdict, hostLine, hostNames, named, newestSample, noteLines } from "../../../web/widgets/gpu/gpu_text.js";

/** @param {Partial<import("../../../web/types.js").Gpu>} more */
const gpu = (more) => ({ rank: 0, key: `GPU-${more.rank ?? 0}`, name: "H100", host: "a", device_index: 0, state: /** @type {const} */ ("ok"), why: [], time_ns: 1, step: 1, values: {}, about: {}, ...more });
/** @param {Partial<import("../../../web/types.js").GpuLanes>} more @returns {import("../../../web/types.js").GpuLanes} */
const lanes = (more) => ({ rank: 0, key: "GPU-0", about: {}, times_ns: [10, 20, 30, 40], steps: [null, 1, 1, 2], values: {}, merge: {}, events: [], ...more });
/** @param {import("../../../web/types.js").Gpu[]} gpus */
const answer = (gpus) => ({ gpus, hosts: [], notes: [], now_ns: 9 });
const verdictText = (/** @type {import("../../../web/types.js").Gpus} */ answered) => gpuVerdict(answered, "1").parts[0][1];

test("the sentence names the worst card, and says so when nothing stands out", () => {
  assert.match(verdictText(answer([gpu({}), gpu({ rank: 1 })])), /^Nothing stands out: all 2 GPUs answer/);
  const bad = answer([gpu({ rank: 3, state: "gone", why: ["it does not answer"] }), gpu({ rank: 1, state: "slowed" }), gpu({})]);
  assert.equal(verdictText(bad), "1 of 3 GPUs needs attention: rank 3, it does not answer. 1 more is throttled.");
  assert.equal(gpuVerdict(bad, "1").links[0].path, "/runs/1/gpu?rank=3&key=GPU-3");
  assert.equal(gpuVerdict(bad, "1", { start: 5, stop: 9 }).links[0].path, "/runs/1/gpu?rank=3&start=5&stop=9&key=GPU-3");
  assert.match(verdictText(answer([gpu({ rank: 2, state: "slowed", why: ["HW slowdown"] })])), /throttled: rank 2, HW slowdown/);
  assert.match(verdictText(answer([gpu({ state: "stale" })])), /as far as is known: 1 of 1 GPU has gone silent/);
  assert.equal(gpuVerdict(answer([]), "1").level, "empty");
});

test("hosts stand in the order of their worst card, and those without a card at the end", () => {
  const host = (/** @type {string} */ name, time_ns = 1) => ({ rank: 0, host: name, time_ns, values: {}, about: {} });
  const all = { ...answer([gpu({ host: "b" }), gpu({ host: "a" }), gpu({ host: "b" })]), hosts: [host("c"), host("a", 5), host("a", 2)] };
  assert.deepEqual(hostNames(all).map((name) => [name, newestSample(all, name)?.time_ns]), [["b", undefined], ["a", 5], ["c", 1]]);
});

test("a value that is not supported is n/a", () => {
  assert.match(hostLine({ rank: 0, host: "a", time_ns: 1, values: { load_1m: 0 }, about: {} }), /CPU n\/a, load 0\.0, memory n\/a/);
});

test("bits and numbers by their names", () => {
  const names = { 4: "sw_power_cap", 64: "hw_thermal_slowdown" };
  assert.deepEqual(bitNames(68, names), ["sw power cap", "hw thermal slowdown"]);
  assert.equal(named("throttle_reasons", 0, { names: { throttle_reasons: names } }), "none");
  assert.equal(named("recovery_action", 2, { names: { recovery_action: { 2: "reboot the node" } } }), "reboot the node");
  assert.equal(named("recovery_action", null, { names: { recovery_action: { 0: "none" } } }), "n/a");
  assert.deepEqual(noteLines([{ rank: 0, message: "no driver" }, { rank: 1, message: "no driver" }]), ["ranks 0 and 1: no driver"]);
});

test("samples stand within the width of their step", () => {
  assert.deepEqual(places([null, 0, 1, 1, 2]), [-0.25, 0.25, 0.75, 1.25, 2]);
  assert.deepEqual(stepsOf(lanes({})), { start: 1, stop: 3 });
  assert.deepEqual(stepsOf(lanes({ steps: [] })), { start: 0, stop: 1 });
  const now = 1.79e18;
  const at = timesOf(lanes({ times_ns: [0, 1, 2, 3].map((s) => now + s * 1e9) }), { start: 1, stop: 2 });
  assert.ok(at && at.start_ns < now + 1e9 && at.start_ns > now && at.stop_ns > now + 2e9 && at.stop_ns < now + 3e9, "whole samples, though their times are rounded");
  assert.equal(timesOf(lanes({}), { start: 1, stop: 2 })?.start_ns, 0);
  assert.equal(timesOf(lanes({}), { start: 7, stop: 9 }), null);
});

test("lines keep what is not known, and limits come from what the card is", () => {
  const of = lanes({ values: { a: [1, null, 3, 4], b: [1, 1, null, 1] }, about: { maxima: { sm: 7 } } });
  const { series } = linesOf(of, [{ name: "x", of: column("a", 2) }, { name: "s", of: sum("a", "b") }, { name: "m", of: constant("maxima", "sm") }, { name: "?", of: column("none") }]);
  assert.deepEqual(series.map(({ y }) => y), [[0.5, NaN, 1.5, 2], [2, NaN, NaN, 5], [7, 7, 7, 7], [NaN, NaN, NaN, NaN]]);
});

test("a throttle band lasts as long as its bit is set", () => {
  const of = lanes({ steps: [0, 1, 2, 3], values: { throttle_reasons: [0, 64, 68, 4] } });
  assert.deepEqual([...bitBands(of, "throttle_reasons")], [[4, [{ from: 1.5, to: 3.5 }]], [64, [{ from: 0.5, to: 2.5 }]]]);
  const model = throttleModel(of, { 4: "power" });
  assert.deepEqual(model.rows.map(({ name, isCalm }) => [name, isCalm]), [["power", true], ["bit 64", false]]);
  assert.equal(throttleModel(lanes({ values: { throttle_reasons: [null, null, null, null] } }), {}).isKnown, false);
});

test("events are sorted by what they are", () => {
  const event = (/** @type {string} */ kind, step = 1, data = {}) => ({ time_ns: 1, step, kind, message: "m", data });
  const { rows } = eventModel(lanes({ events: [event("xid"), event("gpu", -1, { ecc_uncorrected_volatile: 1 }), event("gpu_lost"), event("gpu")] }));
  assert.deepEqual(rows.map(({ name, marks }) => [name, marks[0].at]), [["Xid", 1], ["memory errors", 0], ["lost", 1], ["other", 1]]);
});

test("without a wish the worst card is shown, without any card the host", () => {
  const host = { rank: 1, host: "a", time_ns: 1, values: {}, about: {} };
  const all = { ...answer([gpu({ rank: 2, key: "GPU-2" }), gpu({ rank: 1, key: "GPU-1" })]), hosts: [host] };
  const state = (/** @type {object} */ more) => /** @type {any} */ ({ rank: null, key: "", ...more });
  assert.equal(choose(all, state({}))?.key, "GPU-2");
  assert.equal(choose(all, state({ rank: 1 }))?.key, "GPU-1");
  assert.equal(choose(all, state({ rank: 1, key: "host" }))?.host, host);
  assert.equal(choose(all, state({ rank: 7 })), null);
  assert.equal(choose({ ...all, gpus: [] }, state({}))?.key, "host");
});

test("a card that several ranks use is one card", () => {
  const shared = [gpu({ rank: 0, key: "GPU-7" }), gpu({ rank: 1, key: "GPU-7" }), gpu({ rank: 2, host: "b", key: "GPU-7" })];
  assert.match(verdictText(answer(shared)), /all 2 GPUs answer/);
  const bad = shared.map((one) => ({ ...one, state: /** @type {const} */ ("alarm"), why: ["memory errors"] }));
  assert.match(verdictText(answer(bad)), /^2 of 2 GPUs need attention/);
});

const SECOND = 1e9;
const START = 1.79e18;
const hung = (/** @type {number} */ last) => lanes({ times_ns: [0, 1, 2, ...Array.from({ length: last }, (_, i) => 3 + i)].map((s) => START + s * SECOND), steps: [0, 1, 2, ...Array(last).fill(3)] });

test("on the time axis a step that hangs is as long as it lasts", () => {
  const timed = onTime({ ...hung(100), values: { throttle_reasons: [0, 0, 0, 64, 64, ...Array(98).fill(0)] } });
  assert.deepEqual(rangeOf(timed), { start: 0, stop: 103 });
  assert.deepEqual(bitBands(timed, "throttle_reasons").get(64), [{ from: 2.5, to: 4.5 }]);
  const far = { kind: "xid", message: "Xid 79", step: 3, time_ns: START + 90 * SECOND, data: {} };
  assert.equal(eventModel({ ...timed, events: [far] }).rows[0].marks[0].at, 90);
  assert.equal(eventModel({ ...hung(100), events: [far] }).rows[0].marks[0].at, 3);
  assert.deepEqual([isLongInOneStep(hung(100)), isLongInOneStep(hung(30)), isLongInOneStep(lanes({ steps: [] }))], [true, false, false]);
});

test("time without samples is a gap, not a line", () => {
  const times = [0, 1, 2, 60, 61].map((s) => START + s * SECOND);
  const timed = onTime(lanes({ times_ns: times, steps: [0, 1, 2, 3, 4], values: { a: [1, 2, 3, 4, 5] } }));
  const { series } = linesOf(timed, [{ name: "a", of: column("a") }]);
  assert.deepEqual(series[0].x, [0, 1, 2, 60, 60, 61]);
  assert.deepEqual(series[0].y, [1, 2, 3, NaN, 4, 5]);
});

test("held down is a share of the time, whatever a sample stands for", () => {
  const of = lanes({ times_ns: [0, 10, 20, 30].map((s) => START + s * SECOND), values: { a: [null, 5e9, 0, 2e9], b: [null, null, 1e9, 9e9] } });
  assert.deepEqual(timeShare("a")(of), [null, 50, 0, 20]);
  assert.deepEqual(timeShare("a", "b")(of), [null, 50, 10, 100]);
  assert.deepEqual(timeShare("none")(of), [null, null, null, null]);
});

test("the clock's round times stand along the time axis", () => {
  const origin = new Date(2026, 0, 1, 12, 0, 50).getTime() * 1e6;
  assert.deepEqual(clockTicks({ start: 0, stop: 41 }, origin, 5).map(({ text }) => text), ["12:00:50", "12:01:00", "12:01:10", "12:01:20", "12:01:30"]);
  assert.deepEqual(clockTicks({ start: 0, stop: 400 }, origin, 5).map(({ at, text }) => [at, text]), [[70, "12:02"], [190, "12:04"], [310, "12:06"]]);
  assert.ok(clockTicks({ start: 0, stop: 40 * 86400 }, origin, 5).length <= 6);
  assert.equal(clockText(5, origin), "12:00:55");
});

/** Runs as in another time zone. @param {string} zone @param {() => void} check */
function inZone(zone, check) {
  const before = process.env.TZ;
  process.env.TZ = zone;
  try {
    check();
  } finally {
    if (before === undefined) delete process.env.TZ;
    else process.env.TZ = before;
  }
}

test("a time says of which zone it is, and over midnight of which day", () => inZone("Europe/Berlin", () => {
  const winter = Date.UTC(2026, 0, 1, 22, 59, 30) * 1e6;
  assert.equal(clockAxis(winter).text(5, 1), "23:59:35 CET");
  assert.equal(clockAxis(Date.UTC(2026, 6, 1, 10) * 1e6).text(5, 1), "12:00:05 CEST");
  assert.equal(clockAxis(winter, true).text(5, 1), "01 Jan 23:59:35 CET");
  assert.equal(clockAxis(winter).span({ start: 0, stop: 20 }), "23:59:30 to 23:59:49 CET");
  assert.equal(clockAxis(winter).span({ start: 0, stop: 61 }), "01 Jan 23:59:30 to 02 Jan 00:00:30 CET");
  assert.equal(clockAxis(winter).label, "time, CET");
  assert.equal(eventTime(winter), "01/01/2026, 23:59:30 CET");
  assert.deepEqual([isOverMidnight({ start: 0, stop: 29 }, winter), isOverMidnight({ start: 0, stop: 31 }, winter)], [false, true]);
  assert.deepEqual(clockTicks({ start: 0, stop: 60 }, winter, 5).map(({ text }) => text), ["01 Jan 23:59:30", "23:59:45", "02 Jan 00:00:00", "00:00:15", "00:00:30"]);
}));

test("a part of the time axis goes into the address and comes back", () => {
  const patch = timesPatch({ start_ns: START + 1_500_000, stop_ns: START + 9 * SECOND });
  assert.deepEqual(patch, { axis: "time", from: START / 1e6 + 1, to: START / 1e6 + 9000 });
  assert.deepEqual(spanOf(/** @type {any} */ (patch)), { start_ns: START + 1_000_000, stop_ns: START + 9 * SECOND });
  assert.deepEqual([timesPatch(null), spanOf({ from: null, to: null })], [{ from: null, to: null }, null]);
});
