// The open run, its state and when it was last seen; opened, a search for another one (a combobox with its list).

import * as api from "../api.js";
import { el, replace } from "../dom.js";
import { age, clip } from "../format.js";
import { clockFrom } from "../server_clock.js";
import { MOST_LETTERS, countText, runOption } from "./run_option.js";
import { stateBadge } from "./state_badge.js";

/** @typedef {import("../types.js").RunSummary} RunSummary */

/** Runs listed at once. */
const MOST = 20;
/** Typing rests this long before it is searched for. Milliseconds. */
const REST_MS = 150;

/** @param {(run: RunSummary) => void} choose */
export function createRunPicker(choose) {
  const name = el("span", { class: "picker-name" });
  const state = el("span", { class: "picker-state" });
  const seen = el("span", { class: "picker-seen", "data-testid": "last-seen" });
  const button = el("button", { type: "button", class: "picker-button", "data-command": "pick-run", "aria-haspopup": "dialog", "aria-expanded": "false", "aria-keyshortcuts": "r", click: toggle }, name, el("span", { class: "picker-arrow", "aria-hidden": "true" }, "▾"));
  const input = el("input", { type: "search", class: "picker-search", role: "combobox", "aria-label": "Find a run", "aria-expanded": "true", "aria-controls": "picker-list", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", maxlength: 200, placeholder: "name, title or tag", input: typed, keydown: key });
  const list = el("ul", { id: "picker-list", class: "picker-list", role: "listbox", "aria-label": "Runs" });
  const said = el("p", { class: "picker-said", role: "status" });
  const popup = el("div", { class: "picker-popup", role: "dialog", "aria-label": "Choose a run", hidden: true }, input, said, list);
  const element = el("div", { class: "run-picker", "data-testid": "run-picker", hidden: true, focusout: left }, button, el("p", { class: "picker-facts" }, state, " ", seen), popup);
  /** @type {{run: import("../types.js").Run, nowNs: () => number} | null} */
  let open = null;
  /** @type {RunSummary[]} */
  let found = [];
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
    found = [];
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
      said.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {import("../types.js").RunList} answer */
  function draw({ runs, total, now_ns: nowNs }) {
    found = runs;
    isPending = false;
    said.textContent = countText(runs.length, total);
    replace(list, ...runs.map((run, i) => runOption(run, nowNs, { id: `picker-${i}`, isOpen: run.id === open?.run.id, pick: () => pick(run) })));
    point(Math.max(0, runs.findIndex(({ id }) => id === open?.run.id)));
    if (isEntered) pick(runs[0]);
  }

  /** @param {number} next */
  function point(next) {
    active = found.length ? (next + found.length) % found.length : -1;
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
    else pick(found[active]);
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
    saw(run) {
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
