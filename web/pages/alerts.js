// Alerts: what is wrong now, what was, what to try; who is told, and what fires when.

import { MOST_ALERTS } from "../alert_marks.js";
import * as api from "../api.js";
import { createAlertList } from "../components/alert_card.js";
import { createSilences, createTargets } from "../components/alert_targets.js";
import { createNothing } from "../components/fact_cards.js";
import { mountRunPage } from "../components/run_page.js";
import { createThresholds } from "../components/thresholds_form.js";
import { createVerdict } from "../components/verdict.js";
import { el, replace } from "../dom.js";
import { plural } from "../format.js";

const HOUR_S = 3600;

/** @typedef {import("../types.js").Alert} Alert */

/** @param {readonly Alert[]} open @param {Record<string, string>} failed @returns {import("../types.js").Verdict} */
function verdictOf(open, failed) {
  const worst = ["critical", "warning", "info"].find((severity) => open.some(({ finding }) => finding.severity === severity));
  const unknown = Object.keys(failed).length;
  const missed = unknown ? ` ${plural(unknown, "rule")} could not be applied: what they would find is unknown.` : "";
  const levels = /** @type {Record<string, string>} */ ({ critical: "overflow", warning: "warning", info: "ok" });
  const text = open.length ? `${plural(open.length, "finding")} ${open.length === 1 ? "stands" : "stand"}.` : "Nothing is wrong as far as the rules see.";
  return { level: worst ? levels[worst] : unknown ? "warning" : "ok", parts: [["text", text + missed]], links: [] };
}

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
  const open = createAlertList("Now", "alerts-open", actions);
  const over = createAlertList("Over", "alerts-over", actions);
  const silences = createSilences((silence) => act(() => api.unsilence(silence.id)));
  const targets = createTargets();
  const thresholds = createThresholds(run, refetch);
  const element = el("div", {}, verdict.element, problem, open.element, nothing.element, over.element, el("div", { class: "lanes" }, silences.element, targets.element), thresholds.element);
  let isFound = false;

  return {
    element,
    async update(about, signal) {
      const [diagnosis, listed, quiet, told, rules, holds] = await Promise.all([
        api.diagnosis(run, signal),
        api.alerts(run, { state: "all", limit: MOST_ALERTS }, signal),
        api.silences(signal),
        api.targets(signal),
        api.rules(signal),
        api.thresholds(run, signal),
      ]);
      const now = listed.alerts.filter(({ resolved_ns }) => resolved_ns === null);
      const bySeverity = ["critical", "warning", "info"];
      now.sort((a, b) => bySeverity.indexOf(a.finding.severity) - bySeverity.indexOf(b.finding.severity) || b.id - a.id);
      verdict.update(verdictOf(now, diagnosis.failed));
      open.update(now, listed.now_ns);
      over.update(listed.alerts.filter(({ resolved_ns }) => resolved_ns !== null), listed.now_ns);
      nothing.update(listed.alerts.length ? null : [`The rules look at the run every few seconds while it trains; ${plural(rules.rules.length, "rule")} watch it.`]);
      silences.update(quiet.silences.filter(({ run_id }) => run_id === null || run_id === about.id), listed.now_ns);
      targets.update(told.targets);
      thresholds.update(rules, holds);
      if (!isFound) lookAt(ctx.state.key);
      isFound = true;
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
  card.tabIndex = -1;
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
