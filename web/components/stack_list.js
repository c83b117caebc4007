// Where each rank stands: its state, its line of code, its stacks to copy. Open ones stay open while the page is fresh.

import { el, replace } from "../dom.js";
import { clip } from "../format.js";
import { gpuLine, rankOrder, rankState, whereText } from "../hang_words.js";
import { copyButton } from "./copy_button.js";

/** @typedef {import("../types.js").HangRank} HangRank */

/** Ranks shown, of which so many are opened at first. */
const MOST_RANKS = 64;
const OPENED = 2;

export function createStackList() {
  const element = el("div", { class: "lanes", "data-testid": "stacks" });
  const more = el("p", { class: "muted figure-notes" });
  let shown = "";
  return {
    element: el("div", {}, element, more),
    /** @param {readonly HangRank[]} ranks @param {string} cause */
    update(ranks, cause) {
      const all = rankOrder(ranks);
      const known = all.slice(0, MOST_RANKS);
      // Times go on; a reader who selects a stack is not to lose it for that.
      const now = JSON.stringify(known.map(({ silent_s: _, waits_for: __, gpu: ___, ...stays }) => stays));
      if (now !== shown) draw(element, known);
      shown = now;
      element.querySelectorAll("[data-state]").forEach((node, i) => (node.textContent = stateLine(known[i], cause)));
      more.textContent = all.length > MOST_RANKS ? `${all.length - MOST_RANKS} more ranks, none of them missing before these.` : "";
    },
  };
}

/** @param {HangRank} rank @param {string} cause */
const stateLine = (rank, cause) => [rankState(rank, cause), gpuLine(rank.gpu)].filter(Boolean).join("; ");

/** @param {HTMLElement} place @param {readonly HangRank[]} ranks */
function draw(place, ranks) {
  const opened = new Map([...place.querySelectorAll("details")].map((one) => [one.dataset.rank, one.open]));
  replace(place, ...ranks.map((rank, i) => panel(rank, opened.get(String(rank.rank)) ?? (i < OPENED && rank.role !== "other"))));
}

/** @param {HangRank} rank @param {boolean} open */
function panel(rank, open) {
  const where = whereText(rank.where);
  const stacks = rank.stacks ?? "";
  const head = el("summary", {}, el("strong", { class: rank.role === "missing" ? "bad" : null }, `${rank.role === "missing" ? "✕ " : ""}rank ${rank.rank}`), " ", el("span", { class: "muted", "data-state": "" }));
  return el(
    "details",
    { class: "panel report stack", open, "data-rank": rank.rank, "data-testid": "stack" },
    head,
    where ? el("p", { class: "breaks" }, "At ", el("code", {}, clip(where, 300))) : null,
    stacks ? copyButton(() => stacks, "Copy the stacks") : el("p", { class: "muted" }, noStacks(rank)),
    stacks ? el("pre", { tabindex: 0, "aria-label": `Stacks of rank ${rank.rank}` }, stacks) : null,
  );
}

/** @param {HangRank} rank */
function noStacks(rank) {
  if (rank.has_ended) return "This rank has ended: there is no stack.";
  if (rank.is_silent) return "Nothing has come from it since it stopped, so its stack is not known.";
  return "It has sent no stack.";
}
