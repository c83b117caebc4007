// The badge of a run's state: a shape and a word.

import { el } from "../format/dom.js";

/** @type {Record<string, {shape: string, word: string, help: string}>} */
const STATES = {
  live: { shape: "●", word: "live", help: "a rank reported in the last 15 s" },
  finished: { shape: "■", word: "finished", help: "every rank said goodbye" },
  failed: { shape: "✕", word: "failed", help: "the training of a rank ended with an exception" },
  died: { shape: "✕", word: "died", help: "a rank ended without a goodbye" },
  terminated: { shape: "✕", word: "stopped", help: "a rank was ended by SIGTERM, from outside" },
  stale: { shape: "▲", word: "stale", help: "silent, without a goodbye" },
  empty: { shape: "○", word: "no steps yet", help: "attached; no step has arrived" },
};

/** @param {string} state */
export function stateBadge(state) {
  const { shape, word, help } = STATES[state] ?? { shape: "?", word: state, help: "" };
  return el("span", { class: "badge", "data-state": state, title: help }, el("span", { "aria-hidden": "true" }, shape), ` ${word}`);
}
