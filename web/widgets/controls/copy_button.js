// A button that copies text and confirms it, and a block of code with that button.

import { el } from "../../format/dom.js";

/** @param {() => string} text @param {string} [name] */
export function copyButton(text, name = "Copy") {
  const button = el("button", { type: "button", class: "quiet", click: copy }, name);
  async function copy() {
    button.textContent = (await put(text(), button)) ? "Copied" : "Select the text and copy it";
    setTimeout(() => (button.textContent = name), 2000);
  }
  return button;
}

/** The clipboard needs https or loopback; elsewhere an old-fashioned selection does. @param {string} text @param {HTMLElement} button */
async function put(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return putBySelection(text, button);
  }
}

/** Beside the button: where a dialog is open nothing outside of it can be selected. @param {string} text @param {HTMLElement} button */
function putBySelection(text, button) {
  const area = el("textarea", { class: "visually-hidden", readonly: true });
  area.value = text;
  button.after(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  button.focus();
  return copied;
}

/** Code to paste, with its copy button. @param {string} code @param {string} label */
export function pasteBlock(code, label) {
  return el("div", { class: "paste" }, el("pre", { "aria-label": label, tabindex: 0 }, code), copyButton(() => code));
}
