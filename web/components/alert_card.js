// One finding: what, where, why, how it went on, what to try; and what somebody does about it.

import { el, link, replace } from "../dom.js";
import { age, clip, count } from "../format.js";
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
    { class: "panel alert", "data-severity": finding.severity, "data-alert": alert.id, id: `alert-${alert.id}` },
    el("p", { class: "alert-what" }, el("strong", { class: "finding-severity" }, SHAPES[finding.severity] ?? finding.severity), " ", clip(finding.summary, MOST)),
    el("p", { class: "muted" }, facts(alert, nowNs).join(" · ")),
    reasons("Why", finding.evidence),
    reasons("Then", finding.path),
    reasons("With it", finding.consequences),
    ...finding.remedy.map(remedy),
    el("p", { class: "alert-actions" }, ...places(alert), ...buttons(alert, actions)),
  );
}

/** @param {Alert} alert @param {number} nowNs */
function facts({ finding, opened_ns, resolved_ns, resolved_step, acknowledged_by, acknowledged_ns, silenced_by }, nowNs) {
  return [
    finding.rule.replaceAll("_", " "),
    `since ${age(nowNs - opened_ns)}`,
    resolved_ns !== null && `over since ${age(nowNs - resolved_ns)}${resolved_step === null ? "" : `, step ${count(resolved_step)}`}`,
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

/** Where the evidence is. @param {Alert} alert */
function places({ run_id, finding }) {
  if (finding.step === null) return [];
  const rank = finding.rank === null ? "" : `&rank=${finding.rank}`;
  return [link(`${runPath(run_id, "step")}?step=${finding.step}${rank}`, {}, `Step ${count(finding.step)}`), " "];
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

/** A list of alerts. @param {string} title @param {string} name @param {Actions} actions */
export function createAlertList(title, name, actions) {
  const list = el("ul", { class: "alert-list" });
  const heading = el("h2", { class: "part-title" }, title);
  const element = el("section", { "data-testid": name, hidden: true }, heading, list);
  let shown = "";
  return {
    element,
    /** @param {readonly Alert[]} alerts @param {number} nowNs */
    update(alerts, nowNs) {
      const now = JSON.stringify([alerts, Math.floor(nowNs / 60e9)]); // an age in minutes: no redraw under a selection
      if (now === shown) return;
      shown = now;
      element.hidden = alerts.length === 0;
      heading.textContent = `${title} (${alerts.length})`;
      const open = document.activeElement?.closest("[data-alert]")?.id;
      replace(list, ...alerts.map((alert) => alertCard(alert, nowNs, actions)));
      if (open) /** @type {HTMLElement | null} */ (document.getElementById(open)?.querySelector("button"))?.focus();
    },
  };
}
