// One alert as a card: headline, a line why, a line what to try; all evidence, code and what followed unfold.

import { runPath } from "../../api/url_state.js";
import { el, link } from "../../format/dom.js";
import { age, clip, count } from "../../format/numbers.js";
import { copyButton } from "../../widgets/controls/copy_button.js";

/** @typedef {import("../../types.js").Alert} Alert */
/**
 * @typedef {object} Actions
 * @property {(alert: Alert) => void} acknowledge
 * @property {(alert: Alert) => void} silence
 */

/** @type {Record<string, string>} */
const SHAPES = { critical: "■", warning: "▲", info: "○" };
const MOST = 600;
/** Lines of one part. */
const MOST_LINES = 20;

/** @param {Alert} alert @param {number} nowNs @param {Actions} actions @param {Set<number>} unfolded alerts whose evidence is shown */
export function alertCard(alert, nowNs, actions, unfolded) {
  const { finding } = alert;
  const [why] = finding.evidence;
  const [fix] = finding.remedy;
  return el(
    "li",
    { class: "panel alert", "data-severity": finding.severity, "data-alert": alert.id, "data-key": alert.id, id: `alert-${alert.id}`, tabindex: -1 },
    el("p", { class: "alert-what" }, ...headline(alert)),
    why && el("p", { class: "alert-line" }, el("span", { class: "alert-part" }, "Why"), el("span", {}, clip(why, MOST))),
    fix && el("p", { class: "alert-line" }, el("span", { class: "alert-part" }, "Fix"), el("span", {}, clip(fix.text, MOST), fix.code && " ", fix.code && copyButton(() => fix.code, "Copy the code"))),
    evidence(alert, unfolded),
    el("p", { class: "alert-actions" }, ...places(alert).map(([text, path]) => link(path, {}, text)), ...buttons(alert, actions), el("span", { class: "muted" }, alertDetails(alert, nowNs).join(" · "))),
  );
}

/** Severity, label and summary: the label is the one of the verdict. @param {Alert} alert @returns {import("../../format/dom.js").Child[]} */
function headline({ label, finding: { severity, summary } }) {
  const shape = el("span", { class: "finding-severity", title: severity }, SHAPES[severity] ?? "", el("span", { class: "visually-hidden" }, severity));
  return [shape, " ", label && el("strong", {}, `${label}.`), label && " ", clip(summary, MOST)];
}

/** All of the evidence, code, and what followed. @param {Alert} alert @param {Set<number>} unfolded */
function evidence({ id, finding }, unfolded) {
  const fixes = finding.remedy.length > 1 ? finding.remedy : finding.remedy.filter(({ code, because }) => code || because);
  const parts = [reasons("Why", finding.evidence.length > 1 ? finding.evidence : []), reasons("Then", finding.path), reasons("Led to", finding.consequences), ...fixes.map(remedy)].filter(Boolean);
  if (!parts.length) return null;
  const toggle = (/** @type {Event} */ event) => {
    const isOpen = event.target instanceof HTMLDetailsElement && event.target.open;
    if (isOpen) unfolded.add(id);
    else unfolded.delete(id);
  };
  return el("details", { class: "alert-more", open: unfolded.has(id), toggle }, el("summary", {}, unfoldText(finding)), ...parts);
}

/** What there is to unfold, such as "4 reasons, what followed, code". Pure. @param {import("../../types.js").RuleFinding} finding */
export function unfoldText({ evidence: why, path, consequences, remedy: fixes }) {
  const text = [
    why.length > 1 && `${count(why.length)} reasons`,
    path.length + consequences.length > 0 && "what followed",
    fixes.length > 1 && `${count(fixes.length)} fixes`,
    fixes.some(({ code }) => code) && "code",
  ].filter(Boolean).join(", ");
  return text ? text.slice(0, 1).toUpperCase() + text.slice(1) : "Details";
}

/** @param {string} title @param {readonly string[]} lines */
const reasons = (title, lines) =>
  lines.length > 0 && el("div", { class: "alert-reasons" }, el("h3", {}, title), el("ul", {}, ...lines.slice(0, MOST_LINES).map((line) => el("li", {}, clip(line, MOST)))));

/** @param {import("../../types.js").Remedy} remedy */
function remedy({ text, code, because }) {
  return el(
    "div",
    { class: "alert-reasons" },
    el("h3", {}, "Fix"),
    el("p", {}, clip(text, MOST), because && el("span", { class: "muted" }, ` (${clip(because, MOST)})`)),
    code && el("div", { class: "paste" }, el("pre", { tabindex: 0, "aria-label": "Code to try" }, code), copyButton(() => code)),
  );
}

/** Where the evidence is, each as text and address: the step, and what the rule names. Pure. @param {Alert} alert @returns {[string, string][]} */
export function places({ run_id, finding: { step, rank, links } }) {
  return step === null ? links : [[`Step ${count(step)}`, runPath(run_id, "step", { step, rank })], ...links];
}

/** What stands beside the buttons. Pure. @param {Alert} alert @param {number} nowNs */
export function alertDetails({ finding, opened_ns, resolved_ns, resolved_step, acknowledged_by, acknowledged_ns, silenced_by }, nowNs) {
  return [
    `opened ${age(nowNs - opened_ns)}`,
    resolved_ns !== null && `resolved ${age(nowNs - resolved_ns)}${resolved_step === null ? "" : `, step ${count(resolved_step)}`}`,
    acknowledged_ns !== null && `acknowledged by ${clip(acknowledged_by, 60)}`,
    silenced_by !== null && "silenced",
    `rule ${finding.rule}`,
  ].filter((each) => each !== false);
}

/** @param {Alert} alert @param {Actions} actions */
function buttons(alert, actions) {
  if (alert.resolved_ns !== null) return [];
  const isSeen = alert.acknowledged_ns !== null;
  return [
    el("button", { type: "button", class: "quiet", click: () => actions.acknowledge(alert) }, isSeen ? "Unacknowledge" : "Acknowledge"),
    alert.silenced_by === null && el("button", { type: "button", class: "quiet", click: () => actions.silence(alert), title: "Send nothing of this rule in this run for an hour" }, "Silence for an hour"),
  ];
}
