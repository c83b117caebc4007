// A button of a chart that opens a few choices under it; it closes at Escape, at a press beside it and when the focus leaves.

import { el, replace } from "../../format/dom.js";

let menus = 0;

/**
 * @param {{text: string, name: string, kind: string, of: HTMLElement}} button what stands on it, what it is called, what its classes begin with, and what describes it
 * @param {(menu: {close: () => void, finish: () => void}) => import("../../format/dom.js").Child[]} items made each time that it opens
 */
export function createMenu({ text, name, kind, of }, items) {
  const id = `figure-choices-${(menus += 1)}`;
  of.id ||= `${id}-of`;
  const button = el("button", { type: "button", class: `quiet menu-button ${kind}-menu-button`, "aria-label": name, "aria-describedby": of.id, "aria-expanded": "false", "aria-controls": id, click: () => (choices.hidden ? open() : close()) }, text);
  const choices = el("div", { class: `menu-choices ${kind}-choices`, id, role: "group", "aria-label": name, "aria-describedby": of.id, hidden: true });
  const element = el("div", { class: `menu ${kind}-menu`, keydown: key, focusout: left }, button, choices);
  const handle = { close, finish };

  function open() {
    button.setAttribute("aria-expanded", "true");
    fill();
    choices.hidden = false;
    document.addEventListener("pointerdown", outside, true);
    choices.querySelector("button")?.focus({ preventScroll: true });
  }

  function fill() {
    replace(choices, ...items(handle));
  }

  function close() {
    button.setAttribute("aria-expanded", "false");
    choices.hidden = true;
    document.removeEventListener("pointerdown", outside, true);
  }

  /** Closed, with the focus where it came from. */
  function finish() {
    const wasInside = choices.contains(document.activeElement);
    close();
    if (wasInside) button.focus({ preventScroll: true });
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (event.key !== "Escape" || choices.hidden) return;
    event.stopPropagation();
    close();
    button.focus();
  }

  /** @param {PointerEvent} event */
  function outside(event) {
    if (!(event.target instanceof Node && element.contains(event.target))) close();
  }

  /** @param {FocusEvent} event */
  function left(event) {
    if (event.relatedTarget instanceof Node && !element.contains(event.relatedTarget)) close();
  }

  return { element, close, finish };
}

/** @param {string} text @param {() => unknown} act @param {boolean} [isOn] of what is on or off */
export function menuChoice(text, act, isOn) {
  return el("button", { type: "button", class: "figure-choice", "aria-pressed": isOn === undefined ? null : String(isOn), click: () => act() }, text);
}
