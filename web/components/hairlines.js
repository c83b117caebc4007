// Thin dotted lines down through a plot, under the marks above it. They take no pointer, and leave the data to be seen.

import { el, replace } from "../dom.js";

export function createHairlines() {
  const element = el("div", { class: "hairlines", "aria-hidden": "true" });
  return {
    element,
    /** @param {readonly number[]} xs pixels from the left @param {number} height */
    draw(xs, height) {
      element.style.height = `${height}px`;
      replace(element, ...xs.map(lineAt));
    },
  };
}

/** @param {number} x */
function lineAt(x) {
  const line = el("span", {});
  line.style.transform = `translateX(${Math.round(x)}px)`;
  return line;
}
