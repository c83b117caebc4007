// One thin row of a run's alerts above lanes, each at its place on their axis. A run without any has no row.

import { marksOf, placed } from "../alert_marks.js";
import { notableAlerts } from "../alert_pages.js";
import { el, link } from "../dom.js";
import { plural } from "../format.js";
import { soonAfter } from "../soon_after.js";
import { runPath } from "../url_state.js";
import { watchWidth } from "../watch_width.js";
import { createMarkList } from "./alert_mark_list.js";
import { createAlertTip } from "./alert_tip.js";

/** @typedef {import("../alert_marks.js").Mark} Mark */
/** @typedef {import("../alert_marks.js").MarkAxis} MarkAxis */
/**
 * @typedef {object} RowHandlers
 * @property {(places: number[]) => void} marked where marks stand now, for the lines through what is below
 * @property {(place: number | null) => void} [point] a mark is pointed at, or none any more
 */

/** Pixels that keep the first mark, which is half as wide, off the word before it. */
const LABEL_GAP = 13;

/** @param {string} run @param {RowHandlers} handlers */
export function createAlertRow(run, { marked, point = () => {} }) {
  const label = link(runPath(run, "alerts"), { class: "alert-row-label", title: "All alerts of this run, as a list" }, "Alerts");
  const said = el("span", { class: "alert-row-said" });
  const list = createMarkList(run, tell, left);
  const tip = createAlertTip();
  const body = el("div", { class: "alert-row-body" }, label, said, list.element, tip.element);
  const element = el("div", { class: "alert-row", "data-testid": "alert-row", hidden: true }, body);
  /** @type {import("../types.js").Alert[]} */
  let alerts = [];
  let problem = "";
  let isLoaded = false;
  /** @type {((width: number) => MarkAxis) | null} */
  let axisFor = null;
  /** @type {Mark[]} */
  let marks = [];
  /** The mark whose words are shown. @type {number | null} */
  let told = null;
  const stop = watchWidth(body, draw);

  function draw() {
    if (!axisFor || (element.hidden && !alerts.length && !problem)) return;
    element.hidden = false; // only what is shown has a width
    const axis = axisFor(body.clientWidth);
    const known = placed(alerts, axis);
    element.hidden = !problem && !known.length;
    marks = marksOf(known, axis);
    said.textContent = problem || (marks.length ? "" : `${plural(known.length, "alert")} ${axis.outside}`);
    said.style.marginLeft = `${axis.left}px`;
    label.style.width = `${axis.left - LABEL_GAP}px`;
    list.update(marks, axis);
    marked(marks.map(({ place }) => place));
    tell(told);
  }

  /** The words stay while the pointer goes on to them. @param {PointerEvent | FocusEvent} event */
  function left({ type, relatedTarget }) {
    if (type === "blur" || !(relatedTarget instanceof Node && tip.element.contains(relatedTarget))) tell(null);
  }

  /** @param {number | null} key */
  function tell(key) {
    const mark = marks.find((each) => each.key === key);
    if (!mark && told === null) return;
    told = mark?.key ?? null;
    if (mark && axisFor) tip.show(mark, axisFor(body.clientWidth), body.clientWidth);
    else tip.hide();
    point(mark?.place ?? null);
  }

  tip.element.addEventListener("pointerleave", () => tell(null));
  element.addEventListener("keydown", ({ key }) => key === "Escape" && tell(null));

  /** @param {(width: number) => MarkAxis} axis of what is drawn below now */
  function show(axis) {
    axisFor = axis;
    draw();
  }

  /** A failure is this row's to tell, and no one else's. @param {AbortSignal} signal */
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
        await soonAfter(below);
        signal.throwIfAborted();
      }
      await load(signal);
      show(axis);
    },
    destroy: stop,
  };
}
