// Figures a reader asks for first, and the panel that stands where there is nothing to show.

import { el, replace } from "../dom.js";
import { drawCard } from "./cards.js";

/** @typedef {import("./cards.js").Card} Card */

export function createFactCards() {
  const element = el("div", { class: "cards" });
  return {
    element,
    /** @param {Card[]} cards */
    update(cards) {
      element.hidden = cards.length === 0;
      replace(element, ...cards.map(drawCard));
    },
  };
}

/** Why there is nothing, and what to do. @param {string} title */
export function createNothing(title) {
  const body = el("div", { class: "nothing-body" });
  const element = el("section", { class: "panel state-panel", "data-testid": "empty-state", hidden: true }, el("h2", {}, title), body);
  let shown = "";
  return {
    element,
    /** @param {readonly (string | Node)[] | null} lines null: there is something */
    update(lines) {
      element.hidden = lines === null;
      const now = JSON.stringify(lines?.map((line) => (typeof line === "string" ? line : line.textContent)));
      if (now === shown) return; // what the reader is selecting stays
      shown = now;
      replace(body, ...(lines ?? []).map((line) => (typeof line === "string" ? el("p", {}, line) : line)));
    },
  };
}
