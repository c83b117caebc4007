// Copies text, and says that it did.

import { el } from "../dom.js";

/** @param {() => string} text @param {string} [name] */
export function copyButton(text, name = "Copy") {
  const button = el("button", { type: "button", class: "quiet", click: copy }, name);
  async function copy() {
    button.textContent = (await put(text())) ? "Copied" : "Select the text and copy it";
    setTimeout(() => (button.textContent = name), 2000);
  }
  return button;
}

/** The clipboard needs https or loopback; elsewhere an old-fashioned selection does. @param {string} text */
async function put(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return putBySelection(text);
  }
}

/** @param {string} text */
function putBySelection(text) {
  const area = el("textarea", { class: "visually-hidden", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

/** Code to paste, with its copy button. @param {string} code @param {string} label */
export function pasteBlock(code, label) {
  return el("div", { class: "paste" }, el("pre", { "aria-label": label, tabindex: 0 }, code), copyButton(() => code));
}
