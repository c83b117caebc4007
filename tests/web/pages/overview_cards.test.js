// The cards of the Overview: whom the others wait for. And the order of its lanes.

import assert from "node:assert/strict";
import { test } from "node:test";

import { moved } from "../../../web/charts/lanes/lane_menu.js";
import { goodputText, lateRow, mfuText } from "../../../web/pages/overview/overview_cards.js";
import { headroomText, isFar } from "../../../web/widgets/detail_cards.js";
import { laneOrder } from "../../../web/pages/overview/overview_lanes.js";

const rows = [0, 1, 2, 3].map((rank) => ({ label: `rank ${rank}`, count: 1 }));
/** What rank 2 costs the three others in each of five steps, NaN in one that is not known. @param {number} each */
const waits = (each) => ({ rows, columns: 6, delay: rows.flatMap((_, row) => [0, 1, 2, 3, 4, 5].map((step) => (step === 5 ? NaN : row === 2 ? each : 0.0003))) });

test("who costs the others a good part of most steps is late", () => {
  assert.deepEqual(lateRow(waits(0.03), 0.2), { label: "rank 2", rank: null, wait_s: 0.03 });
  assert.equal(lateRow(waits(0.003), 0.2), null);
  assert.equal(lateRow(waits(0.03), null), null);
  assert.equal(lateRow({ rows: [], columns: 0, delay: [] }, 0.2), null);
});

test("of a rank that came late for the last third of the steps the steps since then count", () => {
  const delay = rows.flatMap((_, row) => Array.from({ length: 90 }, (_each, step) => (row === 2 && step >= 60 ? 0.3 : 0.0001)));
  const late = { rows: rows.map((row, rank) => ({ ...row, rank })), columns: 90, delay };
  assert.equal(lateRow(late, 1), null);
  assert.equal(lateRow(late, 1, 60)?.rank, 2);
  assert.equal(lateRow({ ...late, x0: 3.5, dx: 8 }, 1, 480)?.rank, 2);
});

test("two ranks that wait for each other are both on time", () => {
  const two = { rows: rows.slice(0, 2), columns: 4, delay: [0.028, 0.027, 0.029, 0.028, 0.027, 0.026, 0.028, 0.027] };
  assert.equal(lateRow(two, 0.2), null);
  assert.deepEqual(lateRow({ ...two, delay: [0.028, 0.027, 0.029, 0.028, 0.001, 0, 0.002, 0.001] }, 0.2), { label: "rank 0", rank: null, wait_s: 0.028 });
});

const ALL = ["loss", "loss_scale", "timeline", "step_time", "phases", "waits", "gpu-cards", "logged-0", "layers"];

test("lanes with evidence stand first, and the layers on the first screen", () => {
  assert.deepEqual(laneOrder({ shown: ALL, pinned: [], rules: [] }), ["loss", "step_time", "loss_scale", "layers", "timeline", "phases", "waits", "gpu-cards", "logged-0"]);
  assert.deepEqual(laneOrder({ shown: ALL, pinned: [], rules: ["straggler", "gpu_health"] }).slice(0, 5), ["waits", "step_time", "gpu-cards", "layers", "loss"]);
  assert.deepEqual(laneOrder({ shown: ["timeline", "layers"], pinned: [], rules: ["straggler"] }), ["timeline", "layers"]);
});

test("pinned lanes stand before all others, and the layers where they were pinned", () => {
  assert.deepEqual(laneOrder({ shown: ALL, pinned: ["logged-0", "layers", "gone"], rules: ["straggler"] }).slice(0, 4), ["logged-0", "layers", "waits", "step_time"]);
});

test("a lane that is moved is pinned with those above it", () => {
  assert.deepEqual(moved(["a", "b", "c", "d"], 2, -1, 0), ["a", "c", "b"]);
  assert.deepEqual(moved(["a", "b", "c", "d"], 0, 1, 0), ["b", "a"]);
  assert.deepEqual(moved(["a", "b", "c", "d"], 1, -1, 3), ["b", "a", "c"]);
});

test("of headroom that is beyond the scale no number is shown", () => {
  const least = { bits: 121.4, state: "value", step: 0, rank: 0, tensor: 0, label: "a" };
  assert.equal(headroomText(least), "16+ bits");
  assert.equal(headroomText({ ...least, bits: 16 }), "16.0 bits");
  assert.equal(headroomText({ ...least, bits: null, state: "inf" }), "Inf");
  assert.equal(isFar({ ...least, bits: null }), false);
});

const GOOD = { rank: 0, share: 0.8712, wall_s: 7200, counted_s: 6273, skipped_s: 60, other_s: 867, skipped_steps: 3, replayed_steps: 120, starts: 3 };

test("goodput says where the rest of the time went", () => {
  const text = goodputText(GOOD);
  assert.deepEqual([text?.value, text?.under], ["87.1 %", "2 restarts, 120 replayed, 3 skipped"]);
  assert.equal(text?.how, "Steps that counted took 1 h of the 2 h from attach to the end of the last step; skipped ones 1 min; start-up, restarts and replayed steps 14 min. Rank 0.");
  assert.equal(goodputText({ ...GOOD, starts: 1, replayed_steps: 0, skipped_steps: 0 })?.under, "of 2 h");
  assert.equal(goodputText({ ...GOOD, wall_s: 30 }), null);
  assert.equal(goodputText(null), null);
});

test("MFU is unknown where one of both is", () => {
  const known = { rank: 0, share: 0.41, flops_per_step: 4e14, peak_flops: 9.89e14, device: "H100", source: "measured", step_time_s: 1 };
  assert.deepEqual(mfuText(known), { value: "41 %", under: "of 989 TFLOP/s", how: "400 TFLOP a step (measured) in 1 s, of 989 TFLOP/s of H100. Rank 0." });
  assert.deepEqual(mfuText({ ...known, share: null, peak_flops: null, device: "cpu" }), { value: "unknown", under: "peak of cpu unknown", how: "" });
  assert.equal(mfuText(null), null);
});
