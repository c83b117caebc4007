// Cards of figures at the top of a page, each a title and a value; and the panel where there is nothing to show.

import { SCALE_TOP, stateLabel } from "../charts/statistics.js";
import { el, replace } from "../format/dom.js";
import { bits } from "../format/numbers.js";

export function createDetailCards() {
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

/** @typedef {{title: string, value: string, under?: import("../format/dom.js").Child, level?: string, chart?: SVGElement | null}} Card */

/** @param {Card} card */
export function drawCard({ title, value, under, level, chart }) {
  return el("div", { class: "panel card", "data-level": level, "data-key": title }, el("h2", {}, title), el("p", { class: "card-value" }, value), chart, el("p", { class: "card-under" }, under ?? " "));
}

/** Whether the nearest of all tensors is so far from its limit that which one it is says nothing. @param {import("../types.js").LeastHeadroom} least */
export const isFar = ({ bits: left }) => left !== null && left > SCALE_TOP;

/** @param {import("../types.js").LeastHeadroom} least */
export function headroomText(least) {
  if (isFar(least)) return `${SCALE_TOP}+ bits`;
  return least.bits === null ? stateLabel(least.state) : bits(least.bits);
}
