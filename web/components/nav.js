// The navigation, drawn from the list of pages: those of a run appear once a run is open.

import { el, link, replace } from "../dom.js";
import { buildPath } from "../router.js";
import { formatState } from "../url_state.js";
import { themeToggle } from "./theme_toggle.js";

/** @typedef {import("../types.js").ViewState} ViewState */

/**
 * @param {HTMLElement} nav @param {readonly import("../types.js").Page[]} pages @param {import("../types.js").Page | null} current
 * @param {Record<string, string>} params @param {ViewState} state @param {import("../types.js").Run | null} run as far as it is known
 */
export function drawNav(nav, pages, current, params, state, run) {
  const focused = nav.contains(document.activeElement) ? document.activeElement?.textContent : null;
  const within = pages.filter((page) => (!page.path.includes("{id}") || params.id) && (page.isListed?.(run) ?? true));
  const items = within.map((page) => {
    const path = buildPath(page.path, params) + (page.path.includes("{id}") ? formatState({ ...state, key: "" }) : "");
    const isCurrent = current !== null && (page.id === current.id || page.id === current.under);
    return el("li", {}, link(path, { "aria-current": isCurrent && "page", "data-page": page.id }, page.title));
  });
  replace(nav, link("/", { class: "brand" }, "rangewatch"), el("ul", {}, ...items), themeToggle());
  [...nav.querySelectorAll("a")].find((item) => item.textContent === focused)?.focus();
}
