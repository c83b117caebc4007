// Alerts as marks along an axis: where each stands, which share a mark, the text and the shape of a mark.

import { svg } from "../../format/dom.js";
import { clip, count, plural } from "../../format/numbers.js";
import { clockText, frameOf, pixelOf } from "../frame.js";

/** @typedef {import("../../types.js").Alert} Alert */
/** @typedef {import("../../types.js").StepRange} StepRange */
/**
 * @typedef {object} MarkAxis Where alerts stand on what is drawn below them. Places are in the axis' own unit.
 * @property {number} left pixels before the axis begins
 * @property {string} outside where the others are, as text
 * @property {(alert: Alert) => number | null} placeOf null: it has no place on this axis, whatever part is shown
 * @property {(place: number) => boolean} shows
 * @property {(place: number) => number} pixelOf from the left edge
 * @property {(alert: Alert) => string} text where it stands
 */
/**
 * @typedef {object} Mark
 * @property {number} key id of the alert that stands first, which goes on being so while others join
 * @property {number} place of that alert
 * @property {number} x pixels
 * @property {Alert[]} alerts the one that matters most first
 */

/** From a mark to the next one: no less to a finger (WCAG 2.5.8), and more where a count stands beside it. Pixels. */
const ROOM = 24;
const COUNT_ROOM = 40;
const MOST_LETTERS = 240;
const SEVERITIES = ["critical", "warning", "info"];
/** @type {Record<string, string>} */
const SEVERITY_LABELS = { critical: "Critical", warning: "Warning", info: "Info" };

/** What stands before what is over, then the graver. @param {Alert} a @param {Alert} b */
const byWeight = (a, b) => Number(isOver(a)) - Number(isOver(b)) || SEVERITIES.indexOf(a.finding.severity) - SEVERITIES.indexOf(b.finding.severity);

/** @param {Alert} alert */
const isOver = ({ resolved_ns }) => resolved_ns !== null;

/** Alerts that have a place on the axis. @param {readonly Alert[]} alerts @param {MarkAxis} axis */
export const placed = (alerts, axis) => alerts.filter((alert) => axis.placeOf(alert) !== null);

/** From left to right; what would lie on a mark joins it. @param {readonly Alert[]} alerts @param {MarkAxis} axis @returns {Mark[]} */
export function marksOf(alerts, axis) {
  const shown = alerts
    .map((alert) => ({ alert, place: axis.placeOf(alert) ?? NaN }))
    .filter(({ place }) => axis.shows(place))
    .sort((a, b) => a.place - b.place || a.alert.id - b.alert.id);
  /** @type {Mark[]} */
  const marks = [];
  for (const { alert, place } of shown) {
    const last = marks.at(-1);
    const x = axis.pixelOf(place);
    if (last && x - last.x < (last.alerts.length > 1 ? COUNT_ROOM : ROOM)) last.alerts.push(alert);
    else marks.push({ key: alert.id, place, x, alerts: [alert] });
  }
  for (const { alerts: mine } of marks) mine.sort(byWeight); // the sort is stable: then by place
  return marks;
}

/** "Critical, over". @param {Alert} alert */
export const weightText = (alert) => `${SEVERITY_LABELS[alert.finding.severity] ?? alert.finding.severity}${isOver(alert) ? ", resolved" : ""}`;

/** For who cannot see the mark. @param {Mark} mark @param {MarkAxis} axis */
export function markName({ alerts }, axis) {
  const [first] = alerts;
  const one = `${weightText(first)}, ${axis.text(first)}: ${clip(first.finding.summary, MOST_LETTERS)}`;
  return alerts.length === 1 ? one : `${plural(alerts.length, "alert")}. ${one}`;
}

/** The lanes' step axis. @param {StepRange} range @param {number} width @param {number} [left] @returns {MarkAxis} */
export function stepAxis(range, width, left) {
  return axisOf(range, frameOf(width, 0, range, left), "outside these steps", {
    placeOf: ({ finding }) => finding.step,
    text: ({ finding }) => `step ${count(finding.step)}`,
  });
}

/** The time axis, where an alert stands when it was raised. @param {StepRange} range seconds @param {number} originNs Unix time of second 0 @param {number} width @returns {MarkAxis} */
export function timeAxis(range, originNs, width) {
  const second = (/** @type {Alert} */ { opened_ns: opened }) => (opened - originNs) / 1e9;
  return axisOf(range, frameOf(width, 0, range), "outside this time", {
    placeOf: second,
    text: (alert) => `raised at ${clockText(second(alert), originNs)}${alert.finding.step === null ? "" : `, of step ${count(alert.finding.step)}`}`,
  });
}

/** @param {StepRange} range @param {import("../frame.js").Frame} frame @param {string} outside @param {Pick<MarkAxis, "placeOf" | "text">} own @returns {MarkAxis} */
const axisOf = (range, frame, outside, own) => ({
  ...own,
  outside,
  left: frame.margin.l,
  shows: (place) => place >= range.start && place < range.stop,
  pixelOf: (place) => pixelOf(place, frame),
});

/**
 * A heatmap with a column a step; a step between two columns stands on their border. Places are columns.
 * @param {readonly number[]} steps ascending @param {{left: number, width: number}} area @returns {MarkAxis}
 */
export function columnAxis(steps, { left, width }) {
  return {
    left,
    outside: "outside these steps",
    placeOf: ({ finding }) => (finding.step === null ? null : columnOf(steps, finding.step)),
    shows: (place) => place >= 0 && place <= steps.length,
    pixelOf: (place) => left + (place / Math.max(1, steps.length)) * width,
    text: ({ finding }) => `step ${count(finding.step)}`,
  };
}

/** @param {readonly number[]} steps @param {number} step */
function columnOf(steps, step) {
  if (!steps.length || step < steps[0] || step > steps[steps.length - 1]) return -1;
  const at = steps.findIndex((one) => one >= step);
  return steps[at] === step ? at + 0.5 : at;
}

// The shape of an alert: a square, a triangle or a disc by severity, hollow once it is over. style.css has the colours.

/** @type {Record<string, string>} */
const PATHS = {
  critical: "M1.5 1.5h9v9h-9z",
  warning: "M6 1 11.2 10.6H.8z",
  info: "M1.4 6a4.6 4.6 0 1 0 9.2 0a4.6 4.6 0 1 0-9.2 0z",
};

/** @param {import("../../types.js").Alert} alert */
export function alertGlyph(alert) {
  return severityGlyph(alert.finding.severity, isOver(alert) ? "over" : "open");
}

/** @param {string} severity @param {"open" | "over"} style */
export function severityGlyph(severity, style) {
  const path = svg("path", { d: PATHS[severity] ?? PATHS.info });
  return svg("svg", { class: "alert-glyph", viewBox: "0 0 12 12", "data-severity": severity, "data-style": style, "aria-hidden": "true" }, path);
}
