// Who ended without a goodbye: the sentence, and the Python stacks where faulthandler wrote them.

import { el, replace } from "../dom.js";
import { clip } from "../format.js";
import { copyButton } from "./copy_button.js";

/** Stacks shown: ranks that died together died of the same more often than not. */
const MOST_STACKS = 4;
const MOST_LETTERS = 1200;

export function createDeathNote() {
  const element = el("section", { class: "death-note", "data-testid": "death-note", "aria-live": "polite", hidden: true });
  let shown = "";
  return {
    element,
    /** @param {Pick<import("../types.js").Run, "death" | "deaths">} run */
    update({ death, deaths }) {
      const now = JSON.stringify([death, deaths]);
      if (now === shown) return; // an opened stack stays open
      shown = now;
      element.hidden = !death;
      const told = (deaths ?? []).filter(({ stack }) => stack).slice(0, MOST_STACKS);
      replace(element, death ? el("p", {}, "✕ ", clip(death, MOST_LETTERS)) : null, ...told.map(stackOf));
    },
  };
}

/** @param {import("../types.js").Death} death */
function stackOf({ rank, stack }) {
  return el(
    "details",
    { class: "panel report stack" },
    el("summary", {}, `Python's stacks of rank ${rank}`),
    copyButton(() => stack, "Copy the stacks"),
    el("pre", { tabindex: 0, "aria-label": `Stacks of rank ${rank}` }, stack),
  );
}
