// What a mark of alerts stands for, in words beside it: while it is pointed at or has the focus.

import { weightText } from "../alert_marks.js";
import { el, replace } from "../dom.js";
import { clip, count } from "../format.js";
import { alertGlyph } from "./alert_glyph.js";

/** @typedef {import("../alert_marks.js").Mark} Mark */
/** @typedef {import("../alert_marks.js").MarkAxis} MarkAxis */

const MOST = 5;
const MOST_LETTERS = 300;

export function createAlertTip() {
  const element = el("div", { class: "alert-tip", "data-testid": "alert-tip", "aria-hidden": "true", hidden: true }); // the mark's name says the same
  let shown = "";
  return {
    element,
    /** @param {Mark} mark @param {MarkAxis} axis @param {number} width that it has to keep within; pixels */
    show(mark, axis, width) {
      const lines = mark.alerts.slice(0, MOST);
      const now = JSON.stringify([mark.alerts.length, lines.map((alert) => [alert.id, alert.resolved_ns, alert.finding.summary, axis.say(alert)])]);
      element.hidden = false;
      if (now !== shown) replace(element, ...lines.map((alert) => line(alert, axis)), more(mark.alerts.length - lines.length));
      shown = now;
      const left = Math.max(0, Math.min(width - element.offsetWidth, mark.x - element.offsetWidth / 2));
      element.style.transform = `translateX(${Math.round(left)}px)`;
    },
    hide() {
      element.hidden = true;
    },
  };
}

/** @param {import("../types.js").Alert} alert @param {MarkAxis} axis */
function line(alert, axis) {
  const head = el("span", { class: "alert-tip-head" }, alertGlyph(alert), ` ${weightText(alert)}, ${axis.say(alert)}`);
  return el("p", {}, head, el("span", { class: "alert-tip-text" }, clip(alert.finding.summary, MOST_LETTERS)));
}

/** @param {number} left */
const more = (left) => left > 0 && el("p", { class: "muted" }, `and ${count(left)} more: see the list`);
