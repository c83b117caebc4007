// The shape of an alert: a square, a triangle or a disc by severity, hollow once it is over. style.css has the colours.

import { isOver } from "../alert_marks.js";
import { svg } from "../dom.js";

/** @type {Record<string, string>} */
const PATHS = {
  critical: "M1.5 1.5h9v9h-9z",
  warning: "M6 1 11.2 10.6H.8z",
  info: "M1.4 6a4.6 4.6 0 1 0 9.2 0a4.6 4.6 0 1 0-9.2 0z",
};

/** @param {import("../types.js").Alert} alert */
export function alertGlyph(alert) {
  return severityGlyph(alert.finding.severity, isOver(alert) ? "over" : "open");
}

/** @param {string} severity @param {"open" | "over"} look */
export function severityGlyph(severity, look) {
  const path = svg("path", { d: PATHS[severity] ?? PATHS.info });
  return svg("svg", { class: "alert-glyph", viewBox: "0 0 12 12", "data-severity": severity, "data-look": look, "aria-hidden": "true" }, path);
}
