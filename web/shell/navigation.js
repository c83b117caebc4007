// The navigation bar: the run picker (a combobox that searches the runs), the pages of the open run, and the theme.

import * as api from "../api/client.js";
import { clockFrom } from "../api/live.js";
import { formatState } from "../api/url_state.js";
import { chooseTheme, nextChoice, onTheme, themeChoice } from "../charts/theme.js";
import { el, link, replace } from "../format/dom.js";
import { age, clip, count, plural } from "../format/numbers.js";
import { stateBadge } from "../widgets/states/state_badge.js";
import { buildPath, switchedPath } from "./router.js";

/** @typedef {import("../types.js").ViewState} ViewState */
/** @typedef {import("../types.js").Page} Page */
/** @typedef {import("../types.js").Run} Run */
/** @typedef {{page: Page | null, params: Record<string, string>, state: ViewState, run: Run | null}} Place `run`: as far as it is known */

/**
 * @param {HTMLElement} nav @param {readonly Page[]} pages
 * @param {{session: Node, navigate: (path: string) => void, help: () => void, find: () => void, notifications: {text: () => string, toggle: () => void}}} shell session: who is logged in
 */
export function createNav(nav, pages, { session, navigate, help, find, notifications }) {
  /** @type {Place | null} */
  let place = null;
  let drawn = "";
  const picker = createRunPicker((run) => navigate(switchedPath(patternOf(place?.page), /** @type {Place} */ (place).state, run)));
  const list = el("ul", { class: "nav-pages" });
  const keys = el("button", { type: "button", class: "quiet", "aria-keyshortcuts": "?", "aria-haspopup": "dialog", click: help }, "Keyboard: ?");
  const search = el("button", { type: "button", class: "quiet", "aria-keyshortcuts": "Control+K", "aria-haspopup": "dialog", click: find }, "Find: Ctrl K");
  const bell = el("button", { type: "button", class: "quiet", title: "Browser notifications of the open run's verdict while this page stays open", click: notifications.toggle }, notifications.text());
  const more = el("div", { class: "nav-more", id: "nav-more" }, list, el("div", { class: "nav-foot" }, search, keys, bell, themeToggle(), session));
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
    const within = pages.filter((page) => (!page.path.includes("{id}") || at.params.id) && !page.under);
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
      if (next.run) picker.showRun(next.run);
      draw(next);
    },
    /** What was switched elsewhere. */
    drawSwitches() {
      bell.textContent = notifications.text();
    },
    /** Follows the entry of a page, if it has one now. @param {string} page its id */
    follow(page) {
      const anchor = pageLink(list, page);
      anchor?.click();
      return Boolean(anchor);
    },
  };
}

/** Where another run is to be opened: the same page, or its first one. @param {Page | null | undefined} page */
const patternOf = (page) => (page?.path.includes("{id}") ? page.path : "/runs/{id}");

/** @param {HTMLElement} list @param {string} page @returns {HTMLElement | null} */
const pageLink = (list, page) => list.querySelector(`[data-page="${CSS.escape(page)}"]`);

/** The text of an entry. @param {Page} page @param {Place} at */
function describe(page, { page: current, params, state, run }) {
  const view = page.path.includes("{id}") ? formatState({ ...state, key: "", from: null, to: null }) : "";
  return {
    id: page.id,
    title: page.title,
    path: buildPath(page.path, params) + view,
    isCurrent: current !== null && (page.id === current.id || page.id === current.under),
    help: page.help ?? "",
    isAlarm: Boolean(run && page.isAlarm?.(run)),
    counts: run && page.counts ? page.counts(run) : {},
  };
}

/** @param {ReturnType<typeof describe>} entry */
function entry({ id, title, path, help, isCurrent, isAlarm, counts }) {
  const all = Object.values(counts).reduce((sum, n) => sum + n, 0);
  const mark = all > 0 && el("span", { class: "nav-count", "data-severity": counts.critical ? "critical" : "warning", "aria-hidden": "true" }, count(all));
  return link(path, { title: help, "aria-current": isCurrent && "page", "data-page": id, "data-alarm": isAlarm, "aria-description": all > 0 && plural(all, "open alert") }, title, mark);
}

// Auto, light, dark: one button that steps through them.

function themeToggle() {
  const button = el("button", { type: "button", class: "quiet theme-toggle", click: () => chooseTheme(nextChoice(themeChoice())) });
  const show = () => {
    button.textContent = `Theme: ${themeChoice()}`;
  };
  onTheme(show); // the palette changes it, too
  show();
  return button;
}

// The open run, its state and when it was last seen; opened, a search for another one (a combobox with its list).

/** @typedef {import("../types.js").RunSummary} RunSummary */

/** Runs listed at once. */
const MOST = 20;
/** Typing rests this long before it is searched for. Milliseconds. */
const REST_MS = 150;

/** @param {(run: RunSummary) => void} choose */
function createRunPicker(choose) {
  const name = el("span", { class: "picker-name" });
  const state = el("span", { class: "picker-state" });
  const seen = el("span", { class: "picker-seen", "data-testid": "last-seen" });
  const button = el("button", { type: "button", class: "picker-button", "data-command": "pick-run", "aria-haspopup": "dialog", "aria-expanded": "false", "aria-keyshortcuts": "r", click: toggle }, name, el("span", { class: "picker-arrow", "aria-hidden": "true" }, "▾"));
  const input = el("input", { type: "search", class: "picker-search", role: "combobox", "aria-label": "Find a run", "aria-expanded": "true", "aria-controls": "picker-list", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", maxlength: 200, placeholder: "name, title or tag", input: typed, keydown: key });
  const list = el("ul", { id: "picker-list", class: "picker-list", role: "listbox", "aria-label": "Runs" });
  const status = el("p", { class: "picker-status", role: "status" });
  const popup = el("div", { class: "picker-popup", role: "dialog", "aria-label": "Choose a run", hidden: true }, input, status, list);
  const element = el("div", { class: "run-picker", "data-testid": "run-picker", hidden: true, focusout: left }, button, el("p", { class: "picker-details" }, state, " ", seen), popup);
  /** @type {{run: import("../types.js").Run, nowNs: () => number} | null} */
  let open = null;
  /** @type {RunSummary[]} */
  let matches = [];
  let active = -1;
  /** @type {AbortController | null} */
  let asking = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let rest;
  /** Whether the answer to what was typed is still to come, and whether its first run is to be opened then. */
  let isPending = false;
  let isEntered = false;
  setInterval(tick, 1000);

  function tick() {
    if (open) seen.textContent = `last seen ${age(open.nowNs() - open.run.last_seen_ns)}`;
  }

  function toggle() {
    if (popup.hidden) show();
    else hide(true);
  }

  function show() {
    popup.hidden = false;
    button.setAttribute("aria-expanded", "true");
    input.value = "";
    replace(list);
    forget();
    input.focus();
    void search();
  }

  /** @param {boolean} isFocusKept whether the focus goes back to the button */
  function hide(isFocusKept) {
    clearTimeout(rest);
    asking?.abort();
    isPending = isEntered = false;
    popup.hidden = true;
    button.setAttribute("aria-expanded", "false");
    if (isFocusKept) button.focus();
  }

  /** @param {FocusEvent} event */
  function left(event) {
    if (!popup.hidden && event.relatedTarget instanceof Node && !element.contains(event.relatedTarget)) hide(false);
  }

  /** What is listed is not of what is asked for now: Enter must not open it. */
  function forget() {
    matches = [];
    isPending = true;
    isEntered = false;
    point(-1);
  }

  function typed() {
    forget();
    asking?.abort();
    clearTimeout(rest);
    rest = setTimeout(search, REST_MS);
  }

  async function search() {
    asking?.abort();
    const mine = new AbortController();
    asking = mine;
    const q = input.value.trim();
    try {
      const answer = await api.runs({ q, limit: MOST, archived: q ? "" : "false" }, mine.signal);
      if (!mine.signal.aborted) draw(answer);
    } catch (error) {
      if (mine.signal.aborted) return;
      isPending = isEntered = false;
      status.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {import("../types.js").RunList} answer */
  function draw({ runs, total, now_ns: nowNs }) {
    matches = runs;
    isPending = false;
    status.textContent = countText(runs.length, total);
    replace(list, ...runs.map((run, i) => runOption(run, nowNs, { id: `picker-${i}`, isOpen: run.id === open?.run.id, pick: () => pick(run) })));
    point(Math.max(0, runs.findIndex(({ id }) => id === open?.run.id)));
    if (isEntered) pick(runs[0]);
  }

  /** @param {number} next */
  function point(next) {
    active = matches.length ? (next + matches.length) % matches.length : -1;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
    if (active < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", `picker-${active}`);
    list.children[active].scrollIntoView({ block: "nearest" });
  }

  /** @param {RunSummary | undefined} run */
  function pick(run) {
    isEntered = false;
    if (!run) return;
    hide(true);
    choose(run);
  }

  function enter() {
    if (isPending) isEntered = true;
    else pick(matches[active]);
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (event.key === "ArrowDown") point(active + 1);
    else if (event.key === "ArrowUp") point(active - 1);
    else if (event.key === "Enter") enter();
    else if (event.key === "Escape") hide(true);
    else return;
    event.preventDefault();
  }

  document.addEventListener("pointerdown", (event) => {
    if (!popup.hidden && event.target instanceof Node && !element.contains(event.target)) hide(false);
  });

  return {
    element,
    /** @param {import("../types.js").Run} run */
    showRun(run) {
      if (open?.run === run) return; // no news: its clock goes on
      open = { run, nowNs: clockFrom(run.now_ns) };
      name.textContent = clip(run.title || run.name, MOST_LETTERS);
      button.title = clip(run.name);
      replace(state, stateBadge(run.state));
      tick();
    },
    /** Before anything is known of it. @param {string | null} id of the open run; null: none is */
    update(id) {
      element.hidden = id === null;
      if (id === null) hide(false);
      if (id === null || String(open?.run.id) === id) return;
      open = null;
      name.textContent = `Run ${clip(id, 20)}`;
      replace(state);
      seen.textContent = "";
    },
  };
}

// One run in the list that another is chosen from, and how many there are.

/** Of a title. */
const MOST_LETTERS = 80;

/** @param {import("../types.js").RunSummary} run @param {number} nowNs @param {{id: string, isOpen: boolean, pick: () => void}} place */
function runOption(run, nowNs, { id, isOpen, pick }) {
  const details = el("span", { class: "picker-details" }, stateBadge(run.state), ` last seen ${age(nowNs - run.last_seen_ns)}${run.archived ? ", archived" : ""}`);
  // A press must not take the focus from the search first: the list would close under it.
  const keepFocus = (/** @type {Event} */ event) => event.preventDefault();
  return el("li", { id, role: "option", "aria-selected": "false", "aria-current": isOpen && "true", title: clip(run.name), mousedown: keepFocus, click: pick }, el("span", { class: "picker-name" }, clip(run.title || run.name, MOST_LETTERS)), details);
}

/** @param {number} shown @param {number} total */
function countText(shown, total) {
  if (!total) return "No run has that in its name, title or tags.";
  return shown < total ? `${count(shown)} of ${count(total)} runs: type to find others` : `${count(total)} ${total === 1 ? "run" : "runs"}`;
}
