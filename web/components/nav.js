// The navigation, drawn from the list of pages: those of a run appear once a run is open.

import { el, link, replace } from "../dom.js";
import { buildPath } from "../router.js";
import { formatState } from "../url_state.js";
import { themeToggle } from "./theme_toggle.js";

/** @typedef {import("../types.js").ViewState} ViewState */

/**
 * @param {HTMLElement} nav @param {readonly import("../types.js").Page[]} pages @param {string} current
 * @param {Record<string, string>} params @param {ViewState} state
 */
export function drawNav(nav, pages, current, params, state) {
  const within = pages.filter((page) => !page.path.includes("{id}") || params.id);
  const items = within.map((page) => {
    const path = buildPath(page.path, params) + (page.path.includes("{id}") ? formatState(state) : "");
    return el("li", {}, link(path, { "aria-current": page.id === current && "page" }, page.title));
  });
  replace(nav, link("/", { class: "brand" }, "rangewatch"), el("ul", {}, ...items), themeToggle());
}
