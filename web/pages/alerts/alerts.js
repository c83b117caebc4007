// The Alerts page: what is wrong now, what was, what to try; where alerts are sent, and the thresholds of the rules.

import * as api from "../../api/client.js";
import { alertOf, alertPages } from "../../api/queries.js";
import { throttle } from "../../api/throttle.js";
import { runPath } from "../../api/url_state.js";
import { el, link, replace } from "../../format/dom.js";
import { age, clip, count, duration, plural } from "../../format/numbers.js";
import { reuseRows } from "../../format/reuse_rows.js";
import { copyButton } from "../../widgets/copy_button.js";
import { createNothing } from "../../widgets/detail_cards.js";
import { mountRunPage } from "../../widgets/run_page.js";
import { createVerdict } from "../../widgets/verdict.js";

const HOUR_S = 3600;
/** All rules are applied for a diagnosis, of which the page reads only which rules failed. Milliseconds. */
const KEEP_MS = 10_000;
const SEVERITIES = ["critical", "warning", "info"];

/** @typedef {import("../../types.js").Alert} Alert */
/** @typedef {import("../../types.js").AlertList} AlertList */

/** @param {AlertList} open @param {Record<string, string>} failed @returns {import("../../types.js").Verdict} */
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
  const open = createAlertList("Now", "alerts-open", actions, earlier("open"));
  const over = createAlertList("Over", "alerts-over", actions, earlier("over"));
  const silences = createSilences((silence) => act(() => api.unsilence(silence.id)));
  const targets = createTargets();
  const thresholds = createThresholds(run, refetch);
  const element = el("div", {}, verdict.element, problem, gone, named.element, open.element, nothing.element, over.element, el("div", { class: "lanes" }, silences.element, targets.element), thresholds.element);
  const diagnose = throttle(api.diagnosis, String, KEEP_MS);
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

/** @type {import("../../types.js").Page} */
export default {
  id: "alerts",
  title: "Alerts",
  path: "/runs/{id}/alerts",
  mount: (root, ctx) => mountRunPage(root, ctx, "Alerts", (refetch) => build(ctx, refetch), { needsStep: false }),
};

// One finding: what, where, why, how it went on, what to try; and what somebody does about it.

/**
 * @typedef {object} Actions
 * @property {(alert: Alert) => void} acknowledge
 * @property {(alert: Alert) => void} silence
 */

/** @type {Record<string, string>} */
const SHAPES = { critical: "■ critical", warning: "▲ warning", info: "○ note" };
const MOST = 600;

/** @param {Alert} alert @param {number} nowNs @param {Actions} actions */
function alertCard(alert, nowNs, actions) {
  const { finding } = alert;
  return el(
    "li",
    { class: "panel alert", "data-severity": finding.severity, "data-alert": alert.id, "data-key": alert.id, id: `alert-${alert.id}`, tabindex: -1 },
    el("p", { class: "alert-what" }, el("strong", { class: "finding-severity" }, SHAPES[finding.severity] ?? finding.severity), " ", clip(finding.summary, MOST)),
    el("p", { class: "muted" }, alertDetails(alert, nowNs).join(" · ")),
    reasons("Why", finding.evidence),
    reasons("Then", finding.path),
    reasons("With it", finding.consequences),
    ...finding.remedy.map(remedy),
    el("p", { class: "alert-actions" }, ...places(alert).flatMap(([text, path]) => [link(path, {}, text), " "]), ...buttons(alert, actions)),
  );
}

/** What stands under the summary. Pure. @param {Alert} alert @param {number} nowNs */
export function alertDetails({ finding, opened_ns, resolved_ns, resolved_step, acknowledged_by, acknowledged_ns, silenced_by }, nowNs) {
  return [
    finding.rule.replaceAll("_", " "),
    `opened ${age(nowNs - opened_ns)}`,
    resolved_ns !== null && `over for ${duration(nowNs - resolved_ns)}${resolved_step === null ? "" : `, step ${count(resolved_step)}`}`,
    acknowledged_ns !== null && `seen by ${clip(acknowledged_by, 60)}`,
    silenced_by !== null && "silenced",
  ].filter((each) => each !== false);
}

/** @param {string} title @param {readonly string[]} lines */
const reasons = (title, lines) =>
  lines.length > 0 && el("div", { class: "alert-reasons" }, el("h3", {}, title), el("ul", {}, ...lines.slice(0, 20).map((line) => el("li", {}, clip(line, MOST)))));

/** @param {import("../../types.js").Remedy} remedy */
function remedy({ text, code, because }) {
  return el(
    "div",
    { class: "alert-reasons" },
    el("h3", {}, "Try"),
    el("p", {}, clip(text, MOST), because && el("span", { class: "muted" }, ` (${clip(because, MOST)})`)),
    code && el("div", { class: "paste" }, el("pre", { tabindex: 0, "aria-label": "Code to try" }, code), copyButton(() => code)),
  );
}

/** Where the evidence is, each as words and address: the step, and what the rule names. Pure. @param {Alert} alert @returns {[string, string][]} */
export function places({ run_id, finding: { step, rank, links } }) {
  return step === null ? links : [[`Step ${count(step)}`, runPath(run_id, "step", { step, rank })], ...links];
}

/** @param {Alert} alert @param {Actions} actions */
function buttons(alert, actions) {
  if (alert.resolved_ns !== null) return [];
  const seen = alert.acknowledged_ns !== null;
  return [
    el("button", { type: "button", class: "quiet", click: () => actions.acknowledge(alert) }, seen ? "Not seen after all" : "I have seen it"),
    " ",
    alert.silenced_by === null && el("button", { type: "button", class: "quiet", click: () => actions.silence(alert), title: "Tell nobody of this rule in this run for an hour" }, "Silence for an hour"),
  ];
}

/** A list of alerts. @param {string} title @param {string} name @param {Actions} actions @param {() => void} earlier asks for older ones */
function createAlertList(title, name, actions, earlier) {
  const list = el("ul", { class: "alert-list" });
  const heading = el("h2", { class: "part-title" }, title);
  const more = el("button", { type: "button", class: "quiet", hidden: true, click: earlier }, "Earlier alerts");
  const element = el("section", { "data-testid": name, hidden: true }, heading, list, more);
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
      reuseRows(list, alerts.map((alert) => alertCard(alert, nowNs, actions)));
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
      else replace(list, el("li", { class: "muted" }, "Nobody: alerts are shown here only. A file given to ", el("code", {}, "rangewatch serve --alerts"), " names webhooks, Slack channels and e-mail addresses."));
    },
  };
}

/** @param {Target} target */
function item({ name, kind, severity }) {
  const said = el("span", { role: "status", class: "muted" });
  const button = el("button", { type: "button", class: "quiet", click: test }, "Send a test");
  async function test() {
    said.textContent = "Sending.";
    try {
      const { sent, error } = await api.testTarget(name);
      said.textContent = sent ? "Sent, and accepted." : `Not sent: ${error}`;
    } catch (error) {
      said.textContent = error instanceof Error ? error.message : String(error);
    }
  }
  return el("li", {}, el("strong", {}, name), ` ${kind}, from ${severity} on `, button, " ", said);
}

/** @param {(silence: Silence) => void} end */
function createSilences(end) {
  const list = el("ul", { class: "plain-list" });
  const element = el("section", { class: "panel findings", "data-testid": "silences", hidden: true }, el("h2", {}, "Silenced"), list);
  let shown = "";
  return {
    element,
    /** @param {readonly Silence[]} silences @param {number} nowNs */
    update(silences, nowNs) {
      const now = JSON.stringify([silences, Math.floor(nowNs / 60e9)]);
      if (now === shown) return;
      shown = now;
      element.hidden = silences.length === 0;
      replace(list, ...silences.map((each) => el("li", {}, silenceWords(each, nowNs), " ", el("button", { type: "button", class: "quiet", click: () => end(each) }, "End it"))));
    },
  };
}

/** "first nonfinite in all runs for 40 min more, by admin". Pure. @param {Silence} silence @param {number} nowNs */
export function silenceWords({ rule, tensor, run_id, until_ns, created_by, reason }, nowNs) {
  const what = rule ? rule.replaceAll("_", " ") : "every rule";
  const where = [tensor && `of ${clip(tensor, 80)}`, run_id === null && "in all runs"];
  const text = [what, ...where, `for ${duration(until_ns - nowNs)} more, by ${clip(created_by, 60)}`].filter(Boolean).join(" ");
  return reason ? `${text}: ${clip(reason, 200)}` : text;
}

// The rules' thresholds for one run: what holds, and what somebody sets otherwise here.

/** @typedef {import("../../types.js").RuleFacts} RuleFacts */
/** @typedef {import("../../types.js").Preset} Preset */
/** @typedef {import("../../types.js").Thresholds} Thresholds */
/** @typedef {import("../../types.js").RuleTables} RuleTables */

/** @param {string} run @param {() => void} changed */
function createThresholds(run, changed) {
  const body = el("tbody");
  const said = el("p", { role: "status", class: "muted" });
  const save = el("button", { type: "submit" }, "Set for this run");
  const back = el("button", { type: "button", class: "quiet", click: () => set({}) }, "Take all back");
  const preset = el("select", { change: () => fill(known.find(({ name }) => name === preset.value)) });
  const head = el("tr", {}, ...["Rule", "On", "Threshold", "Value", "Usual", "Meaning"].map((name) => el("th", { scope: "col" }, name)));
  const table = el("table", { class: "dense" }, el("caption", {}, "What fires when, in this run"), el("thead", {}, head), body);
  const choice = el("p", { class: "inline-form" }, el("label", {}, "Use the thresholds of ", preset), el("span", { class: "muted" }, "fills the table; nothing holds before you set it."));
  const form = el("form", { submit: sent }, choice, el("div", { class: "panel table-scroll" }, table), el("p", { class: "inline-form" }, save, back, said));
  const element = el("details", { class: "thresholds", "data-testid": "thresholds" }, el("summary", {}, "Thresholds of the rules"), form);
  /** @type {readonly Preset[]} */
  let known = [];
  let shown = "";

  /** The usual values, and over them a preset's. @param {Preset | undefined} chosen */
  function fill(chosen) {
    for (const input of form.querySelectorAll("input")) {
      const [rule, name] = input.name.split(".");
      if (input.type === "number") input.value = String(chosen?.thresholds[rule]?.[name] ?? input.dataset.usual);
    }
    said.textContent = chosen ? `${chosen.title}. ${chosen.help}` : "";
  }

  /** @param {Event} event */
  function sent(event) {
    event.preventDefault();
    void set(given(form));
  }

  /** @param {RuleTables} tables */
  async function set(tables) {
    said.textContent = "Saving.";
    try {
      draw(await api.rules(), await api.setThresholds(run, tables), true);
      said.textContent = "Saved; the rules look again within seconds.";
      changed();
    } catch (error) {
      said.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {{rules: RuleFacts[], presets: Preset[]}} facts @param {Thresholds} thresholds @param {boolean} [anyway] */
  function draw({ rules, presets }, thresholds, anyway = false) {
    const now = JSON.stringify([rules, thresholds]);
    if (!anyway && (now === shown || form.contains(document.activeElement))) return; // what somebody types stays
    shown = now;
    known = presets;
    replace(preset, el("option", { value: "" }, "Rangewatch"), ...presets.map(({ name, title }) => el("option", { value: name }, title)));
    replace(body, ...rules.flatMap((rule) => rows(rule, thresholds)));
  }

  return { element, update: draw };
}

/** @param {RuleFacts} rule @param {Thresholds} thresholds */
function rows(rule, { in_force, file }) {
  const holds = in_force[rule.name] ?? {};
  const isOn = el("input", { type: "checkbox", name: `${rule.name}.enabled`, checked: holds.enabled !== false, "data-usual": String(file[rule.name]?.enabled !== false), "aria-label": `${rule.title}: on` });
  const first = [el("th", { scope: "row", title: rule.explanation }, rule.title), el("td", {}, isOn)];
  if (!rule.thresholds.length) return [el("tr", {}, ...first, el("td", { colspan: 4, class: "muted" }, "none"))];
  return rule.thresholds.map(({ name, default: usual, unit, help }, place) => {
    const base = file[rule.name]?.[name] ?? usual;
    const value = el("input", { type: "number", step: "any", name: `${rule.name}.${name}`, value: holds[name] ?? usual, "data-usual": base, "aria-label": `${rule.title}: ${name}` });
    return el("tr", {}, ...(place === 0 ? first : [el("td"), el("td")]), el("td", {}, name), el("td", {}, value, " ", unit), el("td", {}, String(base)), el("td", {}, help));
  });
}

/** What differs from what holds without this run's own. @param {HTMLFormElement} form @returns {RuleTables} */
function given(form) {
  /** @type {RuleTables} */
  const tables = {};
  for (const input of form.querySelectorAll("input")) {
    const [rule, name] = input.name.split(".");
    if (!rule || !name) continue;
    if (input.type === "checkbox" && String(input.checked) !== input.dataset.usual) (tables[rule] ??= {}).enabled = input.checked;
    if (input.type === "number" && input.value !== "" && Number(input.value) !== Number(input.dataset.usual)) (tables[rule] ??= {})[name] = Number(input.value);
  }
  return tables;
}
