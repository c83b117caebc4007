// One run in the list that another is chosen from, and how many there are.

import { el } from "../dom.js";
import { age, clip, count } from "../format.js";
import { stateBadge } from "./state_badge.js";

/** Of a title. */
export const MOST_LETTERS = 80;

/** @param {import("../types.js").RunSummary} run @param {number} nowNs @param {{id: string, isOpen: boolean, pick: () => void}} place */
export function runOption(run, nowNs, { id, isOpen, pick }) {
  const facts = el("span", { class: "picker-facts" }, stateBadge(run.state), ` last seen ${age(nowNs - run.last_seen_ns)}${run.archived ? ", archived" : ""}`);
  // A press must not take the focus from the search first: the list would close under it.
  const keepFocus = (/** @type {Event} */ event) => event.preventDefault();
  return el("li", { id, role: "option", "aria-selected": "false", "aria-current": isOpen && "true", title: clip(run.name), mousedown: keepFocus, click: pick }, el("span", { class: "picker-name" }, clip(run.title || run.name, MOST_LETTERS)), facts);
}

/** @param {number} shown @param {number} total */
export function countText(shown, total) {
  if (!total) return "No run has that in its name, title or tags.";
  return shown < total ? `${count(shown)} of ${count(total)} runs: type to find others` : `${count(total)} ${total === 1 ? "run" : "runs"}`;
}
