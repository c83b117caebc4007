// The list of keys, in a dialog, with the switch that turns single keys off.

import { el } from "../dom.js";
import { KEYS, areKeysOn, switchKeys } from "../keys.js";

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
