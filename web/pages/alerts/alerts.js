// The Alerts page: what is wrong now, what was, what to try; where alerts are sent, and the thresholds of the rules.

import * as api from "../../api/client.js";
import { alertOf, alertPages } from "../../api/queries.js";
import { throttle } from "../../api/throttle.js";
import { el, replace } from "../../format/dom.js";
import { clip, count, duration, plural } from "../../format/numbers.js";
import { reuseRows } from "../../format/reuse_rows.js";
import { createNothing } from "../../widgets/detail_cards.js";
import { runPage } from "../../widgets/run_page.js";
import { mayHeal } from "../../widgets/states/error_state.js";
import { createVerdict } from "../../widgets/verdict.js";
import { alertCard } from "./alert_card.js";
import { createThresholds } from "./thresholds.js";

const HOUR_S = 3600;
/** All rules are applied for a diagnosis, of which the page reads only which rules failed. Milliseconds. */
const KEEP_MS = 10_000;
const SEVERITIES = ["critical", "warning", "info"];

/** @typedef {import("../../types.js").Alert} Alert */
/** @typedef {import("../../types.js").AlertList} AlertList */

/** @param {AlertList} open @param {Record<string, string> | null} failed null: not known yet @returns {import("../../types.js").Verdict} */
export function verdictOf({ alerts: open, next }, failed) {
  const worst = SEVERITIES.find((severity) => open.some(({ finding }) => finding.severity === severity));
  const unknown = failed === null || Object.keys(failed).length > 0;
  const missed = failed === null ? " Whether every rule could be applied is not known yet." : unknown ? ` ${plural(Object.keys(failed).length, "rule")} could not be applied: what they would find is unknown.` : "";
  const levels = /** @type {Record<string, string>} */ ({ critical: "critical", warning: "warning", info: "ok" });
  const many = next === null ? plural(open.length, "open alert") : `More than ${count(open.length)} open alerts`;
  const text = open.length ? `${many}.` : "No open alert.";
  const calm = failed === null ? "empty" : unknown ? "warning" : "ok";
  return { level: worst ? levels[worst] : calm, parts: [["text", text + missed]], links: [] };
}

/** The gravest first, then the newest. @param {readonly Alert[]} alerts */
const byWeight = (alerts) => [...alerts].sort((a, b) => SEVERITIES.indexOf(a.finding.severity) - SEVERITIES.indexOf(b.finding.severity) || b.id - a.id);

/** @param {import("../../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../../widgets/run_page.js").RunView} */
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
  const open = createAlertList("Open", "alerts-open", actions, earlier("open"));
  const over = createAlertList("Resolved", "alerts-over", actions, earlier("over"));
  const silences = createSilences((silence) => act(() => api.unsilence(silence.id)));
  const targets = createTargets();
  const thresholds = createThresholds(run, refetch);
  const element = el("div", {}, verdict.element, problem, gone, named.element, open.element, nothing.element, over.element, el("div", { class: "lanes" }, silences.element, targets.element), thresholds.element);
  const diagnose = throttle(api.diagnosis, String, KEEP_MS);
  let focusedKey = "";
  /** Rules that could not be applied, as far as that is known. @type {Record<string, string> | null} */
  let failed = null;

  /** The alert that the address names, where the lists do not have it: older, or no more. @param {readonly Alert[]} listed @param {number} nowNs @param {AbortSignal} signal */
  async function showNamed(listed, nowNs, signal) {
    const { key } = ctx.state;
    const isListed = !key || listed.some(({ id }) => String(id) === key);
    const other = isListed ? null : await alertOf(run, key, signal);
    named.update(other ? [other] : [], nowNs, false);
    gone.hidden = isListed || other !== null;
    gone.textContent = gone.hidden ? "" : `There is no alert ${clip(key, 40)} in this run, or no longer.`;
    if (key !== focusedKey) focusAlert(key);
    focusedKey = key;
  }

  return {
    element,
    async update(about, signal) {
      const applied = diagnose(run, signal).then(({ failed }) => failed);
      applied.catch(() => {}); // it is waited for below
      const [now, past, quiet, recipients, rules, holds] = await Promise.all([
        alertPages(run, { state: "open" }, pages.open, signal),
        alertPages(run, { state: "over" }, pages.over, signal),
        api.silences(signal),
        api.targets(signal),
        api.rules(signal),
        api.thresholds(run, signal),
      ]);
      verdict.update(verdictOf(now, failed));
      open.update(byWeight(now.alerts), now.now_ns, now.next !== null);
      over.update(past.alerts, now.now_ns, past.next !== null);
      const listed = [...now.alerts, ...past.alerts];
      nothing.update(listed.length ? null : [`The rules are checked every few seconds while the run trains; ${plural(rules.rules.length, "rule")} watch it.`]);
      silences.update(quiet.silences.filter(({ run_id }) => run_id === null || run_id === about.id), now.now_ns, Object.fromEntries(rules.rules.map(({ name, title }) => [name, title])));
      targets.update(recipients.targets);
      thresholds.update(rules, holds);
      await showNamed(listed, now.now_ns, signal);
      // Of a thousand ranks all rules may take longer than the server lets a reader wait.
      failed = await applied.catch((error) => {
        if (signal.aborted || !mayHeal(error)) throw error;
        return failed;
      });
      verdict.update(verdictOf(now, failed));
    },
    destroy() {
      replace(element);
    },
  };
}

/** The alert that a message's link or a mark names is unfolded and brought to sight, and is where Tab goes on from. @param {string} alert */
function focusAlert(alert) {
  const card = document.getElementById(`alert-${alert}`);
  if (!card) return;
  const more = card.querySelector("details");
  if (more) more.open = true;
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "center" });
}

export default runPage({
  id: "alerts",
  title: "Alerts",
  key: "a",
  help: "What is wrong now, with evidence and what to try",
  counts: (run) => run.alerts ?? {},
  needsStep: false,
  build,
});

/** A list of alerts. @param {string} title @param {string} name @param {import("./alert_card.js").Actions} actions @param {() => void} earlier asks for older ones */
function createAlertList(title, name, actions, earlier) {
  const list = el("ul", { class: "alert-list" });
  const heading = el("h2", { class: "part-title" }, title);
  const more = el("button", { type: "button", class: "quiet", hidden: true, click: earlier }, "Earlier alerts");
  const element = el("section", { "data-testid": name, hidden: true }, heading, list, more);
  /** Whose evidence and code are unfolded. @type {Set<number>} */
  const unfolded = new Set();
  let shown = "";
  return {
    element,
    /** @param {readonly Alert[]} alerts @param {number} nowNs @param {boolean} hasEarlier */
    update(alerts, nowNs, hasEarlier) {
      const now = JSON.stringify([alerts, hasEarlier, Math.floor(nowNs / 60e9)]); // an age in minutes: no redraw under a selection
      if (now === shown) return;
      shown = now;
      element.hidden = alerts.length === 0;
      heading.textContent = `${title} (${hasEarlier ? "the newest " : ""}${count(alerts.length)})`;
      more.hidden = !hasEarlier;
      const open = document.activeElement?.closest("[data-alert]")?.id;
      reuseRows(list, alerts.map((alert) => alertCard(alert, nowNs, actions, unfolded)));
      if (open && document.activeElement === document.body) document.getElementById(open)?.focus({ preventScroll: true });
    },
  };
}

// Where alerts are sent, with a button that sends a test; and what is silenced now.

/** @typedef {import("../../types.js").Target} Target */
/** @typedef {import("../../types.js").Silence} Silence */

function createTargets() {
  const list = el("ul", { class: "plain-list" });
  const element = el("section", { class: "panel findings", "data-testid": "targets" }, el("h2", {}, "Sent to"), list);
  let shown = "";
  return {
    element,
    /** @param {readonly Target[]} targets */
    update(targets) {
      const now = JSON.stringify(targets);
      if (now === shown) return;
      shown = now;
      if (targets.length) replace(list, ...targets.map(item));
      else replace(list, el("li", { class: "muted" }, "No targets: alerts are shown here only. A file given to ", el("code", {}, "rangewatch serve --alerts"), " names webhooks, Slack channels and e-mail addresses."));
    },
  };
}

/** @param {Target} target */
function item({ name, kind, severity }) {
  const status = el("span", { role: "status", class: "muted" });
  const button = el("button", { type: "button", class: "quiet", click: test }, "Send a test");
  async function test() {
    status.textContent = "Sending.";
    try {
      const { sent, error } = await api.testTarget(name);
      status.textContent = sent ? "Sent, and accepted." : `Not sent: ${error}`;
    } catch (error) {
      status.textContent = error instanceof Error ? error.message : String(error);
    }
  }
  return el("li", {}, el("strong", {}, name), ` ${kind}, from ${severity} on `, button, " ", status);
}

/** @param {(silence: Silence) => void} end */
function createSilences(end) {
  const list = el("ul", { class: "plain-list" });
  const element = el("section", { class: "panel findings", "data-testid": "silences", hidden: true }, el("h2", {}, "Silenced"), list);
  let shown = "";
  return {
    element,
    /** @param {readonly Silence[]} silences @param {number} nowNs @param {Record<string, string>} titles of the rules */
    update(silences, nowNs, titles) {
      const now = JSON.stringify([silences, titles, Math.floor(nowNs / 60e9)]);
      if (now === shown) return;
      shown = now;
      element.hidden = silences.length === 0;
      replace(list, ...silences.map((each) => el("li", {}, silenceText(each, nowNs, titles), " ", el("button", { type: "button", class: "quiet", click: () => end(each) }, "Unsilence"))));
    },
  };
}

/** "NaN or Inf in all runs for 40 min more, by admin". Pure. @param {Silence} silence @param {number} nowNs @param {Record<string, string>} titles of the rules */
export function silenceText({ rule, tensor, run_id, until_ns, created_by, reason }, nowNs, titles) {
  const what = rule ? (titles[rule] ?? rule.replaceAll("_", " ")) : "every rule";
  const where = [tensor && `of ${clip(tensor, 80)}`, run_id === null && "in all runs"];
  const text = [what, ...where, `for ${duration(until_ns - nowNs)} more, by ${clip(created_by, 60)}`].filter(Boolean).join(" ");
  return reason ? `${text}: ${clip(reason, 200)}` : text;
}
