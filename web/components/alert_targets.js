// Where alerts are sent, with a button that sends a test; and what is silenced now.

import * as api from "../api.js";
import { el, replace } from "../dom.js";
import { clip, duration } from "../format.js";

/** @typedef {import("../types.js").Target} Target */
/** @typedef {import("../types.js").Silence} Silence */

export function createTargets() {
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
export function createSilences(end) {
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
