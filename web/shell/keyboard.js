// The keyboard shortcuts, those of the pages among them: the listener, the dialog that lists them, and what each does: go
// to a page, search the layers, or press a button of the page.

import { parseState, runPath } from "../api/url_state.js";
import { el } from "../format/dom.js";
import { SHORTCUTS } from "../widgets/keyboard_shortcuts.js";
import { findPage } from "./router.js";

/** @typedef {import("../types.js").Page} Page */
/** @typedef {import("../widgets/keyboard_shortcuts.js").Shortcut} Shortcut */

const STORED = "rangewatch.keys";
/** A second key of two comes within this time. Milliseconds. */
const PAIR_MS = 1500;

/** All there are: "g" and a page's letter go to it, in the order of the navigation. @param {readonly Page[]} pages @returns {readonly Shortcut[]} */
export function shortcutsOf(pages) {
  const goTo = pages.flatMap(({ id, title, key }) => (key ? [{ group: "Go to", keys: [`g ${key}`], text: title, page: id }] : []));
  const others = SHORTCUTS.findIndex(({ group }) => group !== SHORTCUTS[0].group);
  return [...SHORTCUTS.slice(0, others), ...goTo, ...SHORTCUTS.slice(others)];
}

/** The shortcut of the keys pressed, one or two. @param {readonly Shortcut[]} shortcuts @param {string} pressed */
export const shortcutFor = (shortcuts, pressed) => shortcuts.find(({ keys, command, page }) => (command || page) && keys.includes(pressed)) ?? null;

/** Whether a key begins a pair. @param {readonly Shortcut[]} shortcuts @param {string} key */
const beginsPair = (shortcuts, key) => shortcuts.some(({ keys, page }) => page && keys.some((one) => one.startsWith(`${key} `)));

/** Single keys can be switched off: who speaks to the computer presses many of them. */
function areKeysOn() {
  try {
    return localStorage.getItem(STORED) !== "off";
  } catch {
    return true; // storage may be forbidden
  }
}

/** @param {boolean} isOn */
function switchKeys(isOn) {
  try {
    localStorage.setItem(STORED, isOn ? "on" : "off");
  } catch {
    // they then stay on
  }
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  if (!(target instanceof HTMLElement)) return false;
  const isText = target instanceof HTMLInputElement && !["checkbox", "radio", "button", "submit", "range"].includes(target.type);
  return isText || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable;
}

/** With AltGr some keyboards write brackets. @param {KeyboardEvent} event */
const isPlain = (event) => event.getModifierState("AltGraph") || !(event.ctrlKey || event.metaKey || event.altKey);

/** @param {readonly Shortcut[]} shortcuts @param {(shortcut: Shortcut) => boolean} act returns whether there was something to do */
export function startKeys(shortcuts, act) {
  let first = "";
  let firstMs = 0;

  /** @param {KeyboardEvent} event */
  function pressed(event) {
    const isOurs = !event.defaultPrevented && !event.isComposing && isPlain(event) && !isTyping(event.target);
    if (!isOurs || !areKeysOn() || document.querySelector("dialog[open]")) return;
    const isPair = first !== "" && event.timeStamp - firstMs < PAIR_MS;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key; // whatever Caps Lock is
    const shortcut = shortcutFor(shortcuts, isPair ? `${first} ${key}` : key);
    first = !isPair && beginsPair(shortcuts, key) ? key : "";
    firstMs = event.timeStamp;
    if (shortcut && act(shortcut)) event.preventDefault();
  }

  document.addEventListener("keydown", pressed);
}

/** Ctrl-K, or Command-K, works while typing, too, and with single keys switched off. @param {() => void} open */
export function startPaletteKey(open) {
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || event.ctrlKey === event.metaKey || event.altKey || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    open();
  });
}

// The dialog.

/** @type {Record<string, string>} */
const SIGNS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };

/** @param {readonly Shortcut[]} shortcuts */
export function createKeyboardHelp(shortcuts) {
  const isOn = el("input", { type: "checkbox", change: () => switchKeys(isOn.checked) });
  const close = el("button", { type: "button", class: "quiet", click: () => dialog.close() }, "Close");
  const title = el("h2", { id: "keys-title" }, "Keyboard");
  const groups = [...new Set(shortcuts.map(({ group }) => group))].map((group) => section(group, shortcuts.filter((one) => one.group === group)));
  const choice = el("label", { class: "keys-switch" }, isOn, " Use single keys. Those of figures and of the strip work either way, while they have the focus.");
  const dialog = el("dialog", { class: "keys-dialog", "aria-labelledby": "keys-title", "data-testid": "keyboard-help", click: beside, keydown: key }, el("header", {}, title, close), el("div", { class: "keys-groups" }, ...groups), choice);

  /** A click on what lies around it. @param {MouseEvent} event */
  function beside(event) {
    if (event.target === dialog) dialog.close();
  }

  /** The key that opened it closes it. @param {KeyboardEvent} event */
  function key(event) {
    if (event.key === "?") dialog.close();
  }

  return {
    element: dialog,
    open() {
      isOn.checked = areKeysOn();
      dialog.showModal();
    },
  };
}

/** @param {string} group @param {readonly Shortcut[]} shortcuts of the group */
function section(group, shortcuts) {
  const rows = shortcuts.map(({ keys, text }) => el("div", {}, el("dt", {}, ...signs(keys)), el("dd", {}, text)));
  return el("section", {}, el("h3", {}, group), el("dl", {}, ...rows));
}

/** @param {string[]} keys any of which will do */
function signs(keys) {
  const shown = keys.filter((key) => key !== "=" && key !== "_"); // the same keys without Shift
  return shown.flatMap((key, i) => [i ? " " : "", ...key.split(/[ +](?=.)/).flatMap((part, at) => [at ? (key.includes("+") ? " + " : " then ") : "", el("kbd", {}, SIGNS[part] ?? part)])]);
}

// What a shortcut does: it goes to a page, or presses the button of that command on the page that is shown.

/**
 * @typedef {object} Shell
 * @property {{follow: (page: string) => boolean}} nav
 * @property {() => void} help
 * @property {ReturnType<typeof createLayerSearch>} layerSearch
 * @property {(path: string) => void} navigate
 * @property {readonly Page[]} pages
 */

/** @param {Shell} shell @returns {(shortcut: Shortcut) => boolean} whether there was something to do */
export function createCommands({ nav, help, layerSearch, navigate, pages }) {
  /** The layers' filter, on their page where this one has none. */
  function search() {
    const id = findPage(pages, location.pathname)?.params.id;
    if (layerSearch.focus(id !== undefined) || id === undefined) return;
    navigate(runPath(id, "layers", { ...parseState(location.search), step: null, tensor: null, key: "", from: null, to: null }));
    layerSearch.focusSoon();
  }

  /** @type {Record<string, () => void>} */
  const own = { help, search };

  return ({ command = "", page }) => {
    if (page) return nav.follow(page);
    if (own[command]) own[command]();
    return Boolean(own[command]) || pressed(command);
  };
}

/** Its button, if it can be seen now. @param {string} command */
function pressed(command) {
  const button = [...document.querySelectorAll(`[data-command="${CSS.escape(command)}"]`)].find((one) => one.checkVisibility());
  if (button instanceof HTMLElement) button.click();
  return Boolean(button);
}

// The field that searches the layers: focused where it is, or as soon as the page that has it has drawn it.

const FIELD = "main input[type=search][aria-label=\"Part of a layer's name\"]";
/** Without a run's layers, what the page searches by. */
const ANY_FIELD = "main input[type=search]";
/** A page that takes longer has no such field. Milliseconds. */
const PATIENCE_MS = 20_000;

/** @param {HTMLElement} root where pages are drawn */
export function createLayerSearch(root) {
  const observer = new MutationObserver(() => void (focus(FIELD) && stop()));
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let patience;

  function stop() {
    observer.disconnect();
    clearTimeout(patience);
  }

  return {
    /** Whether there is one. @param {boolean} isOfLayers else any search of the page will do */
    focus: (isOfLayers) => focus(isOfLayers ? FIELD : ANY_FIELD),
    /** Once it is there. */
    focusSoon() {
      stop();
      observer.observe(root, { childList: true, subtree: true, attributeFilter: ["data-ready", "data-level"] });
      patience = setTimeout(stop, PATIENCE_MS);
    },
    stop,
  };
}

/** @param {string} selector */
function focus(selector) {
  const field = [...document.querySelectorAll(selector)].find((one) => one.checkVisibility({ visibilityProperty: true }));
  if (!(field instanceof HTMLInputElement)) return false;
  field.focus();
  field.select();
  return true;
}
