// The row of a run's alerts above lanes: marks as links, with a tooltip. It is there without alerts, too: the first one
// moves nothing.

import { notableAlerts } from "../../api/queries.js";
import { deferUntil } from "../../api/live.js";
import { runPath } from "../../api/url_state.js";
import { el, link, replace, watchWidth } from "../../format/dom.js";
import { clip, count, plural } from "../../format/numbers.js";
import { alertGlyph, markName, marksOf, placed, weightText } from "./alert_marks.js";

/** @typedef {import("./alert_marks.js").Mark} Mark */
/** @typedef {import("./alert_marks.js").MarkAxis} MarkAxis */
/**
 * @typedef {object} RowHandlers
 * @property {(places: number[]) => void} marked where marks stand now, for the lines through what is below
 * @property {(place: number | null) => void} [point] a mark is pointed at, or none any more
 */

/** Pixels that keep the first mark, which is half as wide, off the label before it. */
const LABEL_GAP = 13;

/** @param {string} run @param {RowHandlers} handlers */
export function createAlertRow(run, { marked, point = () => {} }) {
  const label = link(runPath(run, "alerts"), { class: "alert-row-label", title: "All alerts of this run, as a list" }, "Alerts");
  const message = el("span", { class: "alert-row-message" });
  const list = createMarkList(run, showTip, left);
  const tip = createAlertTip();
  const body = el("div", { class: "alert-row-body" }, label, message, list.element, tip.element);
  const element = el("div", { class: "alert-row", "data-testid": "alert-row" }, body);
  /** @type {import("../../types.js").Alert[]} */
  let alerts = [];
  let problem = "";
  let isLoaded = false;
  /** @type {((width: number) => MarkAxis) | null} */
  let axisFor = null;
  /** @type {Mark[]} */
  let marks = [];
  /** Key of the mark whose tip is shown. @type {number | null} */
  let shownKey = null;
  const stop = watchWidth(body, draw);

  function draw() {
    if (!axisFor) return;
    const axis = axisFor(body.clientWidth);
    const known = placed(alerts, axis);
    marks = marksOf(known, axis);
    message.textContent = problem || (marks.length ? "" : noneText(known.length, axis));
    message.style.marginLeft = `${axis.left}px`;
    label.style.width = `${axis.left - LABEL_GAP}px`;
    list.update(marks, axis);
    marked(marks.map(({ place }) => place));
    showTip(shownKey);
  }

  /** @param {number} outside alerts that are not among what is shown @param {MarkAxis} axis */
  function noneText(outside, axis) {
    return outside ? `${plural(outside, "alert")} ${axis.outside}` : isLoaded ? "none" : "";
  }

  /** The tip stays while the pointer goes on to them. @param {PointerEvent | FocusEvent} event */
  function left({ type, relatedTarget }) {
    if (type === "blur" || !(relatedTarget instanceof Node && tip.element.contains(relatedTarget))) showTip(null);
  }

  /** @param {number | null} key */
  function showTip(key) {
    const mark = marks.find((each) => each.key === key);
    if (!mark && shownKey === null) return;
    shownKey = mark?.key ?? null;
    if (mark && axisFor) tip.show(mark, axisFor(body.clientWidth), body.clientWidth);
    else tip.hide();
    point(mark?.place ?? null);
  }

  tip.element.addEventListener("pointerleave", () => showTip(null));
  element.addEventListener("keydown", ({ key }) => key === "Escape" && showTip(null));

  /** @param {(width: number) => MarkAxis} axis of what is drawn below now */
  function show(axis) {
    axisFor = axis;
    draw();
  }

  /** A failure is shown in this row, and nowhere else. @param {AbortSignal} signal */
  async function load(signal) {
    try {
      alerts = await notableAlerts(run, signal);
      problem = "";
      isLoaded = true;
    } catch (error) {
      if (signal.aborted) throw error;
      alerts = [];
      problem = `could not be read: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  return {
    element,
    load,
    show,
    /**
     * At first beside what is `below`, which then need not move for them; later those that are known are shown at once, and asked for after it.
     * @param {(width: number) => MarkAxis} axis @param {Promise<unknown>} below @param {AbortSignal} signal
     */
    async update(axis, below, signal) {
      if (isLoaded) {
        show(axis);
        await deferUntil(below);
        signal.throwIfAborted();
      }
      await load(signal);
      show(axis);
    },
    destroy: stop,
  };
}

// Marks of alerts as links in a row: Tab reaches one of them, arrows lead to the others.

const NAME = "Alerts at their places; left and right arrows move from one to the next, Enter opens";
const MOST_COUNT = 99;

/**
 * @param {string} run @param {(key: number) => void} entered by the pointer or the focus
 * @param {(event: PointerEvent | FocusEvent) => void} left
 */
function createMarkList(run, entered, left) {
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
      const current = new Map(marks.map(({ key }) => [key, nodes.get(key) ?? createNode(key)]));
      for (const [key, node] of nodes) if (!current.has(key)) node.remove();
      nodes = current;
      for (const [i, node] of [...current.values()].entries()) {
        if (element.children[i] !== node) element.insertBefore(node, element.children[i] ?? null);
        drawNode(node, marks[i], axis, run);
      }
      if (![...current.values()].some((node) => node.tabIndex === 0)) reach(marks[0]?.key);
      if (focused !== undefined && !current.has(focused)) follow(focused, marks);
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
  const signature = JSON.stringify([first.finding.severity, first.resolved_ns === null, count, name]);
  if (shown.get(node) !== signature) replace(node, alertGlyph(first), count && el("span", { class: "alert-count", "aria-hidden": "true" }, count), el("span", { class: "visually-hidden" }, name));
  shown.set(node, signature);
  node.setAttribute("href", runPath(run, "alerts", { key: String(first.id) }));
  node.style.transform = `translateX(${Math.round(x)}px)`;
}

// What a mark of alerts stands for, as a tip beside it: while it is pointed at or has the focus.

const MOST = 5;
const MOST_LETTERS = 300;

function createAlertTip() {
  const element = el("div", { class: "alert-tip", "data-testid": "alert-tip", "aria-hidden": "true", hidden: true }); // the mark's name has the same text
  let shown = "";
  return {
    element,
    /** @param {Mark} mark @param {MarkAxis} axis @param {number} width that it has to keep within; pixels */
    show(mark, axis, width) {
      const lines = mark.alerts.slice(0, MOST);
      const now = JSON.stringify([mark.alerts.length, lines.map((alert) => [alert.id, alert.resolved_ns, alert.finding.summary, axis.text(alert)])]);
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

/** @param {import("../../types.js").Alert} alert @param {MarkAxis} axis */
function line(alert, axis) {
  const head = el("span", { class: "alert-tip-head" }, alertGlyph(alert), ` ${weightText(alert)}, ${axis.text(alert)}`);
  return el("p", {}, head, el("span", { class: "alert-tip-text" }, clip(alert.finding.summary, MOST_LETTERS)));
}

/** @param {number} left */
const more = (left) => left > 0 && el("p", { class: "muted" }, `and ${count(left)} more: see the list`);
