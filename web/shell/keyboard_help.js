// The dialog that lists the keys, and what each key does: go to a page, search the layers, or press a button of the
// page.

import { parseState, runPath } from "../api/url_state.js";
import { el } from "../format/dom.js";
import { PAGES } from "../pages/index.js";
import { KEYS, areKeysOn, switchKeys } from "../widgets/keys.js";
import { findPage } from "./router.js";

/** @type {Record<string, string>} */
const SIGNS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };

export function createKeyboardHelp() {
  const isOn = el("input", { type: "checkbox", change: () => switchKeys(isOn.checked) });
  const close = el("button", { type: "button", class: "quiet", click: () => dialog.close() }, "Close");
  const title = el("h2", { id: "keys-title" }, "Keyboard");
  const groups = [...new Set(KEYS.map(({ group }) => group))].map(section);
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

/** @param {string} group */
function section(group) {
  const rows = KEYS.filter((one) => one.group === group).map(({ keys, text }) => el("div", {}, el("dt", {}, ...signs(keys)), el("dd", {}, text)));
  return el("section", {}, el("h3", {}, group), el("dl", {}, ...rows));
}

/** @param {string[]} keys any of which will do */
function signs(keys) {
  const shown = keys.filter((key) => key !== "=" && key !== "_"); // the same keys without Shift
  return shown.flatMap((key, i) => [i ? " " : "", ...key.split(/[ +](?=.)/).flatMap((part, at) => [at ? (key.includes("+") ? " + " : " then ") : "", el("kbd", {}, SIGNS[part] ?? part)])]);
}

// What a key of keys.js does: it goes to a page, or presses the button of that command on the page that is shown.

/**
 * @typedef {object} Shell
 * @property {{follow: (page: string) => boolean}} nav
 * @property {() => void} help
 * @property {ReturnType<typeof createLayerSearch>} layerSearch
 * @property {(path: string) => void} navigate
 */

/** @param {Shell} shell @returns {(key: import("../widgets/keys.js").Key) => boolean} whether there was something to do */
export function createCommands({ nav, help, layerSearch, navigate }) {
  /** The layers' filter, on their page where this one has none. */
  function search() {
    const id = findPage(PAGES, location.pathname)?.params.id;
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
      observer.observe(root, { childList: true, subtree: true });
      patience = setTimeout(stop, PATIENCE_MS);
    },
    stop,
  };
}

/** @param {string} selector */
function focus(selector) {
  const field = [...document.querySelectorAll(selector)].find((one) => one.checkVisibility());
  if (!(field instanceof HTMLInputElement)) return false;
  field.focus();
  field.select();
  return true;
}
