// One finding: what, where, why, how it went on, what to try; and what somebody does about it.

import { el, link } from "../dom.js";
import { age, clip, count, duration } from "../format.js";
import { keepRows } from "../keep_rows.js";
import { runPath } from "../url_state.js";
import { copyButton } from "./copy_button.js";

/** @typedef {import("../types.js").Alert} Alert */
/**
 * @typedef {object} Actions
 * @property {(alert: Alert) => void} acknowledge
 * @property {(alert: Alert) => void} silence
 */

/** @type {Record<string, string>} */
export const SHAPES = { critical: "■ critical", warning: "▲ warning", info: "○ note" };
const MOST = 600;

/** @param {Alert} alert @param {number} nowNs @param {Actions} actions */
export function alertCard(alert, nowNs, actions) {
  const { finding } = alert;
  return el(
    "li",
    { class: "panel alert", "data-severity": finding.severity, "data-alert": alert.id, "data-key": alert.id, id: `alert-${alert.id}`, tabindex: -1 },
    el("p", { class: "alert-what" }, el("strong", { class: "finding-severity" }, SHAPES[finding.severity] ?? finding.severity), " ", clip(finding.summary, MOST)),
    el("p", { class: "muted" }, facts(alert, nowNs).join(" · ")),
    reasons("Why", finding.evidence),
    reasons("Then", finding.path),
    reasons("With it", finding.consequences),
    ...finding.remedy.map(remedy),
    el("p", { class: "alert-actions" }, ...places(alert).flatMap(([text, path]) => [link(path, {}, text), " "]), ...buttons(alert, actions)),
  );
}

/** What stands under the summary. Pure. @param {Alert} alert @param {number} nowNs */
export function facts({ finding, opened_ns, resolved_ns, resolved_step, acknowledged_by, acknowledged_ns, silenced_by }, nowNs) {
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

/** @param {import("../types.js").Remedy} remedy */
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
export function createAlertList(title, name, actions, earlier) {
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
      keepRows(list, alerts.map((alert) => alertCard(alert, nowNs, actions)));
      if (open && document.activeElement === document.body) document.getElementById(open)?.focus({ preventScroll: true });
    },
  };
}
