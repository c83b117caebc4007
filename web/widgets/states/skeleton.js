// What stands where a first answer is awaited: the shapes of a page.

import { el } from "../../format/dom.js";

/** Where things will be, before the first answer. */
export function skeleton() {
  const part = (/** @type {string} */ name) => el("div", { class: `skeleton-${name}`, "aria-hidden": "true" });
  return el("section", { class: "skeleton", "aria-busy": "true", "data-testid": "skeleton" }, el("p", { class: "visually-hidden", role: "status" }, "Loading"), ...["title", "verdict", "cards", "body"].map(part));
}
