
import assert from "node:assert/strict";
import { test } from "node:test";

import { furtherScales, leftOutText, loggedOf, scalerName } from "../../../web/charts/lanes/series_lanes.js";
import { CAUSES, causeText, noDropText, headroomText, ranksText, scaleCards, scaleVerdict, scalesText, settingsText, stepPath } from "../../../web/pages/precision/loss_scale.js";

const FIRST = { tensor: 41, label: "blocks.5.ff grad_output", rank: 5, limit_dtype: "float16", amax_before: 60000, headroom_before_bits: 0.127 };
const drop = (more = {}) => ({ step: 3150, skipped: true, cause: "gradient", scales: [{ scaler: "loss_scale", before: 65536, after: 32768 }], ranks: [5], rank_count: 1, first: FIRST, tensor_count: 1, ...more });
const layer = { tensor: 41, label: FIRST.label, first: 2, overflows: 3, last_step: 3150, amax: 60000, max_finite: 65504, dtype: "float16" };
const answer = (more = {}) => ({
  start: 0, stop: 4000, scalers: [{ name: "loss_scale", min: 16384, max: 65536, last: 16384 }], skipped_steps: 3,
  drops: [drop()], next: null, layers: [layer], layers_of_drops: 3, ...more,
});
const sentence = (/** @type {any} */ loaded) => scaleVerdict(loaded, "7").parts.map(([, text]) => text).join("");

test("the sentence says how often, how far and who", () => {
  assert.equal(sentence(answer()), "3 skipped steps in 4,000; the scale was between 2¹⁴ and 2¹⁶, now 2¹⁴; blocks.5.ff grad_output overflowed first in 2 of 3.");
  assert.deepEqual(scaleVerdict(answer(), "7").parts.filter(([kind]) => kind === "code"), [["code", FIRST.label]]);
  assert.equal(sentence(answer({ skipped_steps: 1, layers: [] })), "1 skipped step in 4,000; the scale was between 2¹⁴ and 2¹⁶, now 2¹⁴.");
  const calm = { skipped_steps: 0, drops: [], layers: [] };
  assert.equal(sentence(answer({ ...calm, scalers: [{ name: "loss_scale", min: 8, max: 8, last: 8 }] })), "No skipped steps in 4,000; the scale was 2³ throughout.");
  assert.equal(sentence(answer({ ...calm, scalers: [{ name: "loss_scale", min: 8, max: 32, last: 32 }] })), "No skipped steps in 4,000; the scale grew from 2³ to 2⁵.");
  assert.equal(sentence(answer({ ...calm, scalers: [{ name: "loss_scale", min: null, max: null, last: null }] })), "No skipped steps in 4,000; no scale was reported in these steps.");
});

test("the last value of steps that are past is not called that of now", () => {
  const verdictText = (/** @type {any} */ loaded, /** @type {boolean} */ isNewest) => scaleVerdict(loaded, "7", { isNewest }).parts[0][1];
  assert.match(verdictText(answer(), true), /, now 2¹⁴$/);
  assert.match(verdictText(answer(), false), /2¹⁶, 2¹⁴ at the end of these steps$/);
  assert.match(noDropText(answer(), true), /in 4,000 steps\. It is 2¹⁴ now\.$/);
  assert.match(noDropText(answer(), false), / It was 2¹⁴ at the end of these steps\.$/);
});

test("a few skips are how loss scaling works; many, or NaN in the forward, are not", () => {
  const level = (/** @type {any} */ more) => scaleVerdict(answer(more), "7").level;
  assert.deepEqual([level({}), level({ skipped_steps: 201 }), level({ drops: [drop(), drop({ cause: "forward" })] })], ["ok", "warning", "warning"]);
});

test("its evidence is linked", () => {
  assert.deepEqual(scaleVerdict(answer(), "7").links.map(({ path }) => path), ["/runs/7/step?step=3150&rank=5&tensor=41", "/runs/7/tensor?tensor=41"]);
  assert.deepEqual(scaleVerdict(answer({ drops: [], layers: [] }), "7").links, []);
  const within = scaleVerdict(answer(), "7", { state: { start: 3000, stop: 4000 } }).links.map(({ path }) => path);
  assert.deepEqual(within, ["/runs/7/step?step=3150&rank=5&tensor=41&start=3000&stop=4000", "/runs/7/tensor?tensor=41&start=3000&stop=4000"]);
  assert.equal(stepPath(drop({ first: null, ranks: [3, 4] }), "7"), "/runs/7/step?step=3150&rank=3");
  assert.equal(stepPath(drop({ first: null, ranks: [] }), "7"), "/runs/7/step?step=3150");
});

test("a drop in words", () => {
  assert.equal(scalesText(drop()), "2¹⁶ → 2¹⁵");
  assert.equal(scalesText(drop({ scales: [{ scaler: "loss_scale", before: 65536, after: null }] })), "2¹⁶ → not known");
  const two = [{ scaler: "loss_scale", before: 8, after: 8 }, { scaler: "loss_scale/1", before: 16, after: 8 }];
  assert.equal(scalesText(drop({ scales: two })), "scaler 2: 2⁴ → 2³");
  assert.equal(ranksText(drop({ ranks: [0, 1, 2], rank_count: 40 })), "ranks 0-2 and 37 more");
  assert.equal(ranksText(drop({ ranks: [], rank_count: 0 })), "none seen");
  assert.equal(headroomText(FIRST), "0.13 bits of float16");
  assert.equal(headroomText({ ...FIRST, headroom_before_bits: null }), "not known");
  assert.equal(headroomText(null), "not known");
});

test("every cause of the server has words, and one it may get later is shown as it is", () => {
  for (const cause of ["gradient", "forward", "reduction", "unknown", "set"]) assert.ok(CAUSES[cause].means && CAUSES[cause].todo, cause);
  assert.deepEqual(causeText("toString"), { what: "toString", means: "", todo: "" });
});

test("settings as far as they are known", () => {
  const known = { class: "GradScaler", growth_factor: 2, backoff_factor: 0.5, growth_interval: 2000 };
  assert.equal(settingsText(known), "× 2 after 2,000 clean steps, × 0.5 at a skip");
  assert.equal(settingsText({ ...known, growth_interval: null, backoff_factor: null }), "grows × 2");
  assert.deepEqual([settingsText(null), settingsText({ class: "X", growth_factor: null, backoff_factor: null, growth_interval: null })], ["", ""]);
});

test("a card a scaler", () => {
  const scalers = [{ name: "loss_scale", min: 8, max: 16, last: 16, settings: null }, { name: "loss_scale/1", min: null, max: null, last: null }];
  const cards = scaleCards(answer({ scalers }));
  assert.deepEqual(cards.map(({ title, value }) => [title, value]), [["Loss scale, scaler 1", "2⁴"], ["Loss scale, scaler 2", "not known"], ["Skipped steps", "3"]]);
  assert.equal(cards[2].under, "of 4,000 (0.075 %)");
  assert.equal(scalerName("other"), "other");
});

test("series of a run: what the program logs, and further scalers", () => {
  const series = ["backward_s", "found_inf", "grad_norm", "loss", "loss_scale", "loss_scale/10", "loss_scale/2", "lr", "skipped_step", "step_time_s"];
  assert.deepEqual(loggedOf(series), ["grad_norm", "lr"]);
  assert.deepEqual(furtherScales(series), ["loss_scale/2", "loss_scale/10"]);
  assert.equal(leftOutText(series), "");
  assert.equal(leftOutText(["a", "b", "c", "d", "e", "f", "g"]), "1 more series is logged: g.");
});
