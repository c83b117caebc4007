// A palette: one field that finds anything by a part of its name, in a dialog; what it finds is given by those who open it.

import { el, replace } from "../../format/dom.js";
import { clip } from "../../format/numbers.js";

/** @typedef {{group: string, text: string, hint?: string, run: () => void}} Entry */

/** Typing rests this long before the server is asked. Milliseconds. */
const REST_MS = 150;
const MOST_LETTERS = 90;

/** Whether each part of what was typed is in the text, in any case and order. Pure. @param {string} text @param {string} q */
export function holds(text, q) {
  const within = text.toLowerCase();
  return q.toLowerCase().split(/\s+/).every((part) => within.includes(part));
}

/**
 * @param {{near: (q: string) => Entry[], far: (q: string, signal: AbortSignal) => Promise<Entry[]>}} sources near: known at once; far: the server's
 */
export function createPalette({ near, far }) {
  const input = el("input", { type: "search", class: "palette-search", role: "combobox", "aria-label": "Find a run, page, layer, rank, step, alert or action", "aria-expanded": "true", "aria-controls": "palette-list", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", maxlength: 200, placeholder: "run, page, layer, rank 3, step 360, alert or action", input: typed, keydown: key });
  const list = el("ul", { id: "palette-list", class: "palette-list", role: "listbox", "aria-label": "Found" });
  const status = el("p", { class: "palette-status muted", role: "status" });
  const dialog = el("dialog", { class: "palette", "aria-label": "Find anything", "data-testid": "palette", click: beside, close: stop }, input, list, status);
  /** @type {Entry[]} */
  let entries = [];
  let active = 0;
  /** @type {AbortController | null} */
  let asking = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let rest;

  function stop() {
    clearTimeout(rest);
    asking?.abort();
  }

  function typed() {
    stop();
    const q = input.value.trim();
    const known = near(q);
    show(known, q ? "Searching…" : "");
    if (q) rest = setTimeout(() => void ask(q, known), REST_MS);
  }

  /** @param {string} q @param {Entry[]} known */
  async function ask(q, known) {
    const mine = new AbortController();
    asking = mine;
    let text = "";
    const found = await far(q, mine.signal).catch((error) => {
      text = error instanceof Error ? error.message : String(error);
      return [];
    });
    if (mine.signal.aborted) return;
    show([...known, ...found], text || (known.length + found.length ? "" : "Nothing has that in its name."));
  }

  /** @param {Entry[]} next @param {string} text */
  function show(next, text) {
    entries = next;
    status.textContent = text;
    status.hidden = !text;
    const items = entries.map(({ group, text: name, hint }, i) =>
      el("li", { id: `palette-${i}`, role: "option", "aria-selected": "false", "data-group": group, mousedown: (/** @type {Event} */ event) => event.preventDefault(), click: () => choose(i) }, el("span", { class: "palette-group" }, entries[i - 1]?.group === group ? el("span", { class: "visually-hidden" }, group) : group), el("span", { class: "palette-name", title: clip(name, 400) }, clip(name, MOST_LETTERS)), hint ? el("span", { class: "palette-hint muted" }, hint) : null),
    );
    replace(list, ...items);
    point(0);
  }

  /** @param {number} next */
  function point(next) {
    active = entries.length ? (next + entries.length) % entries.length : -1;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
    if (active < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", `palette-${active}`);
    list.children[active].scrollIntoView({ block: "nearest" });
  }

  /** @param {number} at */
  function choose(at) {
    const entry = entries[at];
    if (!entry) return;
    dialog.close();
    entry.run();
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (event.key === "ArrowDown") point(active + 1);
    else if (event.key === "ArrowUp") point(active - 1);
    else if (event.key === "Enter") choose(active);
    else if (event.key === "Escape") dialog.close(); // else the field would only be emptied
    else return;
    event.preventDefault();
  }

  /** A click on what lies around it. @param {MouseEvent} event */
  function beside(event) {
    if (event.target === dialog) dialog.close();
  }

  return {
    element: dialog,
    open() {
      if (dialog.open) return dialog.close();
      if (document.querySelector("dialog[open]")) return;
      input.value = "";
      dialog.showModal();
      input.focus();
      typed();
    },
  };
}
