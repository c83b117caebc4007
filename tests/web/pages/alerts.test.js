// Alerts as the pages ask for them, and their words.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { alertOf, alertPages, createTensorList, notableAlerts } from "../../../web/api/queries.js";
import { alertDetails, places, unfoldText } from "../../../web/pages/alerts/alert_card.js";
import { silenceText, verdictOf } from "../../../web/pages/alerts/alerts.js";

const MOST = 200;
const original = globalThis.fetch;
afterEach(() => void (globalThis.fetch = original));

/** A server of 500 alerts, of which the oldest and one of the newest stand; the addresses it was asked for. */
function serve() {
  const all = Array.from({ length: 500 }, (_, i) => ({ id: 500 - i, resolved_ns: [1, 499].includes(500 - i) ? null : 5 }));
  /** @type {string[]} */
  const asked = [];
  globalThis.fetch = /** @type {any} */ (async (/** @type {string} */ path) => {
    asked.push(path);
    const query = new URL(path, "http://x").searchParams;
    const state = query.get("state");
    const limit = Number(query.get("limit"));
    const mine = all.filter(({ id, resolved_ns: over }) => id < Number(query.get("before") ?? Infinity) && (state === "all" || (state === "open") === (over === null)));
    const alerts = mine.slice(0, limit);
    return new Response(JSON.stringify({ now_ns: 0, alerts, next: mine.length > limit ? alerts.at(-1)?.id : null }));
  });
  return asked;
}
const ids = (/** @type {readonly {id: number}[]} */ alerts) => alerts.map(({ id }) => id);

test("an alert that stands is found however many came after it", async () => {
  const asked = serve();
  const open = await alertPages("7", { state: "open" }, 1);
  assert.deepEqual([ids(open.alerts), open.next, asked.length], [[499, 1], null, 1]);
  const marked = ids(await notableAlerts("7", new AbortController().signal));
  assert.deepEqual([marked.length, marked[0], marked.at(-1)], [MOST + 1, 500, 1]);
});

test("earlier alerts come a page at a time, and the last page has no next", async () => {
  serve();
  const two = await alertPages("7", { state: "over" }, 2);
  assert.deepEqual([two.alerts.length, two.next], [2 * MOST, two.alerts.at(-1)?.id]);
  const all = await alertPages("7", { state: "over" }, 9);
  assert.deepEqual([new Set(ids(all.alerts)).size, all.next], [498, null]);
});

test("an alert that the address names is found by its number, or is not there", async () => {
  const asked = serve();
  assert.equal((await alertOf("7", "3"))?.id, 3);
  assert.equal(await alertOf("7", "900"), null);
  assert.equal(asked.length, 2);
  assert.equal(await alertOf("7", "<b>"), null);
  assert.equal(asked.length, 2, "what is no number is not asked for");
});

test("parts of a page that show the same alerts ask once a load", async () => {
  const asked = serve();
  const load = new AbortController().signal;
  const [one, other] = await Promise.all([notableAlerts("7", load), notableAlerts("7", load)]);
  assert.equal(one, other);
  assert.equal(asked.length, 2, "the newest, and the older ones that stand");
  await notableAlerts("7", new AbortController().signal);
  assert.equal(asked.length, 4);
});

test("a run's tensors are asked for once, and again for one that is not known", async () => {
  let asked = 0;
  globalThis.fetch = /** @type {any} */ (async () => new Response(JSON.stringify({ tensors: Array.from({ length: (asked += 1) }, (_, tensor) => ({ tensor })) })));
  const list = createTensorList("7");
  assert.deepEqual([(await list(0)).length, (await list(null)).length, asked], [1, 1, 1]);
  assert.deepEqual([(await list(1)).length, asked], [2, 2]);
});

const finding = { rule: "gpu_health", rank: 3, step: 12, links: [["This GPU", "/runs/7/gpu?rank=3&key=GPU-a"]] };
const alert = /** @type {any} */ ({ run_id: 7, finding, opened_ns: 0, resolved_ns: null, resolved_step: null, acknowledged_ns: null, acknowledged_by: "", silenced_by: null });

test("a card leads to its step and wherever the rule says", () => {
  assert.deepEqual(places(alert), [["Step 12", "/runs/7/step?step=12&rank=3"], ["This GPU", "/runs/7/gpu?rank=3&key=GPU-a"]]);
  assert.deepEqual(places({ ...alert, finding: { ...finding, step: null } }), finding.links);
});

test("since when an alert stands, and for how long it has been over", () => {
  assert.deepEqual(alertDetails(alert, 300e9), ["opened 5 min ago", "rule gpu_health"]);
  assert.deepEqual(alertDetails({ ...alert, resolved_ns: 120e9, resolved_step: 40 }, 300e9), ["opened 5 min ago", "resolved 3 min ago, step 40", "rule gpu_health"]);
});

test("what is folded is named", () => {
  const empty = /** @type {any} */ ({ evidence: ["a"], path: [], consequences: [], remedy: [{ text: "x", code: "", because: "y" }] });
  assert.equal(unfoldText(empty), "Details");
  assert.equal(unfoldText({ ...empty, evidence: ["a", "b"], path: ["c"], remedy: [{ text: "x", code: "d", because: "" }] }), "2 reasons, what followed, code");
});

test("a silence reads as one sentence, whatever it lacks", () => {
  const silence = { id: 1, run_id: 7, rule: "hang", tensor: "", reason: "", created_by: "ann", until_ns: 60e9 };
  assert.equal(silenceText(silence, 0, { hang: "The run hangs" }), "The run hangs for 1 min more, by ann");
  assert.equal(silenceText({ ...silence, rule: "", run_id: null, tensor: "a.*", reason: "a test" }, 0, {}), "every rule of a.* in all runs for 1 min more, by ann: a test");
});

test("that nothing is wrong is said only where nothing stands", () => {
  const one = /** @type {any} */ ({ finding: { severity: "info" } });
  const text = (/** @type {any[]} */ alerts, /** @type {number | null} */ next) => verdictOf({ now_ns: 0, alerts, next }, {}).parts[0][1];
  assert.equal(text([], null), "No open alert.");
  assert.equal(text([one], null), "1 open alert.");
  assert.equal(text([one, one], 5), "More than 2 open alerts.");
});

test("alerts are listed before it is known whether every rule could be applied, and green comes after", () => {
  const list = { now_ns: 0, alerts: [], next: null };
  assert.deepEqual(verdictOf(list, null), { level: "empty", parts: [["text", "No open alert. Whether every rule could be applied is not known yet."]], links: [] });
  assert.equal(verdictOf(list, {}).level, "ok");
  assert.equal(verdictOf(list, { hang: "too long" }).level, "warning");
});
