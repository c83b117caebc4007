// The navigation: the open run, its pages from the list of pages, and what belongs to every page. On a phone it is a bar that opens.

import { el, link, replace } from "../dom.js";
import { count } from "../format.js";
import { buildPath } from "../router.js";
import { switchedPath } from "../run_switch.js";
import { formatState } from "../url_state.js";
import { createRunPicker } from "./run_picker.js";
import { themeToggle } from "./theme_toggle.js";

/** @typedef {import("../types.js").ViewState} ViewState */
/** @typedef {import("../types.js").Page} Page */
/** @typedef {import("../types.js").Run} Run */
/** @typedef {{page: Page | null, params: Record<string, string>, state: ViewState, run: Run | null}} Place `run`: as far as it is known */

/**
 * @param {HTMLElement} nav @param {readonly Page[]} pages
 * @param {{session: Node, navigate: (path: string) => void, help: () => void}} shell session: who is logged in
 */
export function createNav(nav, pages, { session, navigate, help }) {
  /** @type {Place | null} */
  let place = null;
  let drawn = "";
  const picker = createRunPicker((run) => navigate(switchedPath(patternOf(place?.page), /** @type {Place} */ (place).state, run)));
  const list = el("ul", { class: "nav-pages" });
  const keys = el("button", { type: "button", class: "quiet", "aria-keyshortcuts": "?", "aria-haspopup": "dialog", click: help }, "Keyboard: ?");
  const more = el("div", { class: "nav-more", id: "nav-more" }, list, el("div", { class: "nav-foot" }, keys, themeToggle(), session));
  const menu = el("button", { type: "button", class: "nav-menu", "aria-controls": "nav-more", "aria-expanded": "false", click: () => open(!nav.hasAttribute("data-open")) }, "Menu");
  replace(nav, link("/", { class: "brand" }, "rangewatch"), picker.element, menu, more);
  nav.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !nav.hasAttribute("data-open")) return;
    open(false);
    menu.focus();
  });

  /** Of no account where there is room for all of it. @param {boolean} isOpen */
  function open(isOpen) {
    nav.toggleAttribute("data-open", isOpen);
    menu.setAttribute("aria-expanded", String(isOpen));
  }

  /** What stays the same is left alone: a link that is being pressed must not go from under the pointer. @param {Place} at */
  function draw(at) {
    const within = pages.filter((page) => (!page.path.includes("{id}") || at.params.id) && (page.isListed?.(at.run) ?? true));
    const now = JSON.stringify(within.map((page) => describe(page, at)));
    if (now === drawn) return;
    drawn = now;
    const focused = document.activeElement?.closest("#nav [data-page]")?.getAttribute("data-page");
    replace(list, ...within.map((page) => el("li", {}, entry(describe(page, at)))));
    if (focused) pageLink(list, focused)?.focus();
  }

  return {
    /** @param {Place} next */
    update(next) {
      if (next.page !== place?.page || next.params.id !== place?.params.id) open(false);
      place = next;
      picker.update(next.params.id ?? null);
      if (next.run) picker.saw(next.run);
      draw(next);
    },
    /** Follows the entry of a page, if it has one now. @param {string} page its id */
    follow(page) {
      const found = pageLink(list, page);
      found?.click();
      return Boolean(found);
    },
  };
}

/** Where another run is to be opened: the same page, or its first one. @param {Page | null | undefined} page */
const patternOf = (page) => (page?.path.includes("{id}") ? page.path : "/runs/{id}");

/** @param {HTMLElement} list @param {string} page @returns {HTMLElement | null} */
const pageLink = (list, page) => list.querySelector(`[data-page="${CSS.escape(page)}"]`);

/** What an entry says. @param {Page} page @param {Place} at */
function describe(page, { page: current, params, state, run }) {
  const view = page.path.includes("{id}") ? formatState({ ...state, key: "", from: null, to: null }) : "";
  return {
    id: page.id,
    title: page.title,
    path: buildPath(page.path, params) + view,
    isCurrent: current !== null && (page.id === current.id || page.id === current.under),
    isAlarm: page.id === "hang" && Boolean(run?.hang),
    alerts: page.id === "alerts" ? (run?.alerts ?? {}) : {},
  };
}

/** @param {ReturnType<typeof describe>} entry */
function entry({ id, title, path, isCurrent, isAlarm, alerts }) {
  const all = Object.values(alerts).reduce((sum, n) => sum + n, 0);
  const mark = all > 0 && el("span", { class: "nav-count", "data-severity": alerts.critical ? "critical" : "warning", "aria-hidden": "true" }, count(all));
  return link(path, { "aria-current": isCurrent && "page", "data-page": id, "data-alarm": isAlarm, "aria-description": all > 0 && `${count(all)} standing` }, title, mark);
}
