// What the palette finds by number, and the mark and the notifications of a verdict.

import assert from "node:assert/strict";
import { test } from "node:test";

import { numbered, stderrRank } from "../../../web/shell/find.js";
import { headlineOf, isNews, markedTitle } from "../../../web/shell/signals.js";
import { holds } from "../../../web/widgets/controls/palette.js";

const run = /** @type {any} */ ({ id: 1, first_step: 10, last_step: 5000, ranks: [{ rank: 0 }, { rank: 12 }] });

test("a number is a step and a rank, where the run has them", () => {
  assert.deepEqual(numbered("12", run), { ranks: [12], steps: [12] });
  assert.deepEqual(numbered("rank 12", run), { ranks: [12], steps: [] });
  assert.deepEqual(numbered("Step 1,200", run), { ranks: [], steps: [1200] });
  for (const q of ["rank 3", "step 9", "step 5001", "12a", "-1", "layer 3", ""]) assert.deepEqual(numbered(q, run), { ranks: [], steps: [] }, q);
  assert.deepEqual(numbered("0", { ...run, first_step: null, last_step: null }), { ranks: [0], steps: [] });
});

test("each part of what is typed must be in a name, in any order and case", () => {
  assert.ok(holds("Page Loss scale", "scale page") && holds("anything", ""));
  assert.ok(!holds("Page Loss scale", "scale layers"));
});

test("a title has the mark of the verdict's level once, and none where all is well", () => {
  assert.equal(markedTitle("t5 · Overview", "critical"), "■ t5 · Overview");
  assert.equal(markedTitle("■ t5 · Overview", "warning"), "▲ t5 · Overview");
  for (const level of ["ok", "empty", null, "toString"]) assert.equal(markedTitle("▲ t5", level), "t5");
});

test("a notification has the verdict's own words", () => {
  const verdict = /** @type {any} */ ({ level: "critical", parts: [["strong", "Hung."], ["text", " "], ["text", "The run waits for "], ["code", "rank 2"], ["text", "."]] });
  assert.deepEqual(headlineOf(verdict), { title: "Hung.", body: "The run waits for rank 2." });
});

test("news is a problem that was not there before, of the run that was looked at", () => {
  const bad = { id: 1, verdict: /** @type {any} */ ({ level: "critical", parts: [["strong", "Hung."]] }) };
  assert.ok(isNews(bad, { id: 1, level: "ok", title: "No overflow." }));
  assert.ok(isNews(bad, { id: 1, level: "warning", title: "Hung." }), "graver");
  assert.ok(!isNews(bad, { id: 1, level: "critical", title: "Hung." }), "the same");
  assert.ok(!isNews(bad, null) && !isNews(bad, { id: 2, level: "ok", title: "" }), "opened just now");
  assert.ok(!isNews({ id: 1, verdict: /** @type {any} */ ({ level: "ok", parts: [["strong", "Fine."]] }) }, { id: 1, level: "critical", title: "Hung." }));
});

test("whose stderr is asked for: the rank by its number, or else who died, who failed, the first", () => {
  const ranks = [0, 1, 2].map((rank) => ({ rank, failure: rank === 1 ? "ValueError" : null }));
  const run = /** @type {import("../../../web/types.js").Run} */ (/** @type {unknown} */ ({ ranks, deaths: [{ rank: 2 }] }));
  for (const q of ["stderr 0", "Stderr of rank 0", "log 0", "logs of rank 0", "last lines of stderr of rank 0"]) assert.equal(stderrRank(q, run), 0, q);
  for (const q of ["stderr", "logs", "log tail", "last lines"]) assert.equal(stderrRank(q, run), 2, q);
  assert.equal(stderrRank("stderr", { ...run, deaths: [] }), 1);
  for (const q of ["stderr 7", "blog", "logit", "rank 1", "stderr one", ""]) assert.equal(stderrRank(q, run), null, q);
  assert.equal(stderrRank("stderr", { ...run, ranks: [], deaths: [] }), null);
});
