// Alerts: what is wrong now, what was, what to try; who is told, and what fires when.

import { alertOf, alertPages } from "../alert_pages.js";
import * as api from "../api.js";
import { createAlertList } from "../components/alert_card.js";
import { createSilences, createTargets } from "../components/alert_targets.js";
import { createNothing } from "../components/fact_cards.js";
import { mountRunPage } from "../components/run_page.js";
import { createThresholds } from "../components/thresholds_form.js";
import { createVerdict } from "../components/verdict.js";
import { el, replace } from "../dom.js";
import { clip, count, plural } from "../format.js";
import { seldom } from "../seldom.js";

const HOUR_S = 3600;
/** All rules are applied for a diagnosis, of which the page reads only which rules failed. Milliseconds. */
const KEEP_MS = 10_000;
const SEVERITIES = ["critical", "warning", "info"];

/** @typedef {import("../types.js").Alert} Alert */
/** @typedef {import("../types.js").AlertList} AlertList */

/** @param {AlertList} open @param {Record<string, string>} failed @returns {import("../types.js").Verdict} */
export function verdictOf({ alerts: open, next }, failed) {
  const worst = SEVERITIES.find((severity) => open.some(({ finding }) => finding.severity === severity));
  const unknown = Object.keys(failed).length;
  const missed = unknown ? ` ${plural(unknown, "rule")} could not be applied: what they would find is unknown.` : "";
  const levels = /** @type {Record<string, string>} */ ({ critical: "overflow", warning: "warning", info: "ok" });
  const many = next === null ? plural(open.length, "finding") : `More than ${count(open.length)} findings`;
  const text = open.length ? `${many} ${open.length === 1 ? "stands" : "stand"}.` : "Nothing is wrong as far as the rules see.";
  return { level: worst ? levels[worst] : unknown ? "warning" : "ok", parts: [["text", text + missed]], links: [] };
}

/** The gravest first, then the newest. @param {readonly Alert[]} alerts */
const byWeight = (alerts) => [...alerts].sort((a, b) => SEVERITIES.indexOf(a.finding.severity) - SEVERITIES.indexOf(b.finding.severity) || b.id - a.id);

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../components/run_page.js").RunView} */
function build(ctx, refetch) {
  const run = ctx.params.id;
  const problem = el("p", { class: "problem", role: "status", hidden: true });
  /** @param {() => Promise<unknown>} change */
  const act = (change) => {
    problem.hidden = true;
    change().then(refetch, (error) => {
      problem.hidden = false;
      problem.textContent = error instanceof Error ? error.message : String(error);
    });
  };
  const actions = {
    acknowledge: (/** @type {Alert} */ alert) => act(() => api.acknowledge(alert.id, alert.acknowledged_ns === null)),
    silence: (/** @type {Alert} */ { run_id, finding }) => act(() => api.silence({ seconds: HOUR_S, run_id, rule: finding.rule })),
  };
  const verdict = createVerdict();
  const nothing = createNothing("No alert has been raised");
  const pages = { open: 1, over: 1 };
  /** @param {"open" | "over"} state */
  const earlier = (state) => () => {
    pages[state] += 1;
    refetch();
  };
  const named = createAlertList("Named in the address", "alerts-named", actions, () => {});
  const gone = el("p", { class: "problem", role: "status", hidden: true });
  const open = createAlertList("Now", "alerts-open", actions, earlier("open"));
  const over = createAlertList("Over", "alerts-over", actions, earlier("over"));
  const silences = createSilences((silence) => act(() => api.unsilence(silence.id)));
  const targets = createTargets();
  const thresholds = createThresholds(run, refetch);
  const element = el("div", {}, verdict.element, problem, gone, named.element, open.element, nothing.element, over.element, el("div", { class: "lanes" }, silences.element, targets.element), thresholds.element);
  const diagnose = seldom(api.diagnosis, String, KEEP_MS);
  let lookedAt = "";

  /** The alert that the address names, where the lists do not have it: older, or no more. @param {readonly Alert[]} listed @param {number} nowNs @param {AbortSignal} signal */
  async function showNamed(listed, nowNs, signal) {
    const { key } = ctx.state;
    const isListed = !key || listed.some(({ id }) => String(id) === key);
    const found = isListed ? null : await alertOf(run, key, signal);
    named.update(found ? [found] : [], nowNs, false);
    gone.hidden = isListed || found !== null;
    gone.textContent = gone.hidden ? "" : `There is no alert ${clip(key, 40)} in this run, or no longer.`;
    if (key !== lookedAt) lookAt(key);
    lookedAt = key;
  }

  return {
    element,
    async update(about, signal) {
      const [diagnosis, now, past, quiet, told, rules, holds] = await Promise.all([
        diagnose(run, signal),
        alertPages(run, { state: "open" }, pages.open, signal),
        alertPages(run, { state: "over" }, pages.over, signal),
        api.silences(signal),
        api.targets(signal),
        api.rules(signal),
        api.thresholds(run, signal),
      ]);
      verdict.update(verdictOf(now, diagnosis.failed));
      open.update(byWeight(now.alerts), now.now_ns, now.next !== null);
      over.update(past.alerts, now.now_ns, past.next !== null);
      const listed = [...now.alerts, ...past.alerts];
      nothing.update(listed.length ? null : [`The rules look at the run every few seconds while it trains; ${plural(rules.rules.length, "rule")} watch it.`]);
      silences.update(quiet.silences.filter(({ run_id }) => run_id === null || run_id === about.id), now.now_ns);
      targets.update(told.targets);
      thresholds.update(rules, holds);
      await showNamed(listed, now.now_ns, signal);
    },
    destroy() {
      replace(element);
    },
  };
}

/** The alert that a message's link or a mark names is brought to sight, and is where Tab goes on from. @param {string} alert */
function lookAt(alert) {
  const card = document.getElementById(`alert-${alert}`);
  if (!card) return;
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "center" });
}

/** @type {import("../types.js").Page} */
export default {
  id: "alerts",
  title: "Alerts",
  path: "/runs/{id}/alerts",
  mount: (root, ctx) => mountRunPage(root, ctx, "Alerts", (refetch) => build(ctx, refetch), { needsStep: false }),
};
