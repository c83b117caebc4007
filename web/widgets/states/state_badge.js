// The badge of a run's state: a shape and a label.

import { el } from "../../format/dom.js";

/** @type {Record<string, {shape: string, label: string, help: string}>} */
const STATES = {
  live: { shape: "●", label: "live", help: "a rank reported in the last 15 s" },
  hung: { shape: "■", label: "hung", help: "live, and no step ends: ranks wait for one that does not come" },
  finished: { shape: "■", label: "finished", help: "every rank sent a goodbye" },
  failed: { shape: "✕", label: "failed", help: "the training of a rank ended with an exception" },
  died: { shape: "✕", label: "died", help: "a rank ended without a goodbye" },
  terminated: { shape: "✕", label: "stopped", help: "a rank was ended by SIGTERM, from outside" },
  interrupted: { shape: "■", label: "interrupted", help: "somebody ended the training with Ctrl-C" },
  stale: { shape: "▲", label: "stale", help: "silent, without a goodbye" },
  unreadable: { shape: "✕", label: "unreadable", help: "what is stored of it cannot be read; the server's log says why" },
  empty: { shape: "○", label: "no steps yet", help: "attached; no step has arrived" },
};

/** @param {string} state */
export function stateBadge(state) {
  const { shape, label, help } = STATES[state] ?? { shape: "?", label: state, help: "" };
  return el("span", { class: "badge", "data-state": state, title: help }, el("span", { "aria-hidden": "true" }, shape), ` ${label}`);
}
