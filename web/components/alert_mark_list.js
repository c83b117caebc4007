// Marks of alerts as links in a row: Tab reaches one of them, arrows lead to the others.

import { markName } from "../alert_marks.js";
import { el, replace } from "../dom.js";
import { runPath } from "../url_state.js";
import { alertGlyph } from "./alert_glyph.js";

/** @typedef {import("../alert_marks.js").Mark} Mark */
/** @typedef {import("../alert_marks.js").MarkAxis} MarkAxis */

const NAME = "Alerts at their places; left and right arrows move from one to the next, Enter opens";
const MOST_COUNT = 99;

/**
 * @param {string} run @param {(key: number) => void} entered by the pointer or the focus
 * @param {(event: PointerEvent | FocusEvent) => void} left
 */
export function createMarkList(run, entered, left) {
  const element = el("div", { class: "alert-row-marks", role: "group", "aria-label": NAME });
  /** By key, from left to right. @type {Map<number, HTMLElement>} */
  let nodes = new Map();

  /** @param {number} key */
  function createNode(key) {
    const node = el("a", { class: "alert-mark", tabindex: -1, pointerenter: () => entered(key), pointerleave: left, blur: left, keydown: walk });
    node.addEventListener("focus", () => {
      reach(key);
      entered(key);
    });
    return node;
  }

  /** @param {number | undefined} key */
  function reach(key) {
    for (const [each, node] of nodes) node.tabIndex = each === key ? 0 : -1;
  }

  /** @param {KeyboardEvent} event */
  function walk(event) {
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    const all = [...nodes.values()];
    const at = all.indexOf(/** @type {HTMLElement} */ (event.currentTarget));
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    all[to]?.focus({ preventScroll: true });
    event.preventDefault();
  }

  /** The mark that now holds the alert which the focus was on. @param {number} key @param {readonly Mark[]} marks */
  function follow(key, marks) {
    const holder = marks.find(({ alerts }) => alerts.some(({ id }) => id === key));
    if (holder) nodes.get(holder.key)?.focus({ preventScroll: true });
  }

  return {
    element,
    /** A mark that stays keeps its element, and with it the focus. @param {readonly Mark[]} marks @param {MarkAxis} axis */
    update(marks, axis) {
      const focused = [...nodes].find(([, node]) => node === document.activeElement)?.[0];
      const kept = new Map(marks.map(({ key }) => [key, nodes.get(key) ?? createNode(key)]));
      for (const [key, node] of nodes) if (!kept.has(key)) node.remove();
      nodes = kept;
      for (const [i, node] of [...kept.values()].entries()) {
        if (element.children[i] !== node) element.insertBefore(node, element.children[i] ?? null);
        drawNode(node, marks[i], axis, run);
      }
      if (![...kept.values()].some((node) => node.tabIndex === 0)) reach(marks[0]?.key);
      if (focused !== undefined && !kept.has(focused)) follow(focused, marks);
    },
  };
}

/** What was drawn in a mark: what stays the same is not drawn anew. @type {WeakMap<HTMLElement, string>} */
const shown = new WeakMap();

/** @param {HTMLElement} node @param {Mark} mark @param {MarkAxis} axis @param {string} run */
function drawNode(node, mark, axis, run) {
  const { alerts: [first, ...others], x } = mark;
  const count = others.length ? (others.length < MOST_COUNT ? String(others.length + 1) : `${MOST_COUNT}+`) : "";
  const name = markName(mark, axis);
  const look = JSON.stringify([first.finding.severity, first.resolved_ns === null, count, name]);
  if (shown.get(node) !== look) replace(node, alertGlyph(first), count && el("span", { class: "alert-count", "aria-hidden": "true" }, count), el("span", { class: "visually-hidden" }, name));
  shown.set(node, look);
  node.setAttribute("href", runPath(run, "alerts", { key: String(first.id) }));
  node.style.transform = `translateX(${Math.round(x)}px)`;
}
