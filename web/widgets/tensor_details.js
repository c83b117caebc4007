// Details of one tensor: its module and source line, type, shape and limits; its worst place; alerts on it.

import { onward, runPath } from "../api/url_state.js";
import { alertGlyph } from "../charts/alerts/alert_marks.js";
import { stateLabel } from "../charts/statistics.js";
import { el, link } from "../format/dom.js";
import { bits, clip, count, magnitude, shape } from "../format/numbers.js";

/** @typedef {import("../types.js").Tensor} Tensor */

const MOST_ALERTS = 3;

/** @param {Tensor} tensor */
export function tensorDetails(tensor) {
  const details = [
    ["Module", el("code", { title: tensor.module_class ?? null }, clip(tensor.module_class || tensor.module || "not known", 120))],
    ["Source", tensor.source ? el("code", {}, clip(tensor.source, 200)) : "not known"],
    ["Kind", tensor.index ? `${tensor.kind}, number ${count(tensor.index)} of several` : tensor.kind],
    ["Type", tensor.dtype],
    ["Shape", shape(tensor.shape)],
    ["Call order", count(tensor.call_index)],
    ["Largest finite", magnitude(tensor.max_finite)],
    ["Smallest normal", magnitude(tensor.smallest_normal)],
  ];
  return el("dl", { class: "details-list" }, ...details.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** The step worth opening. @param {string} run @param {import("../types.js").Place | null} place null: nothing was observed @param {Parameters<typeof onward>[0]} [state] */
export function worstPlace(run, place, state = {}) {
  if (!place) return el("p", { class: "muted" }, "Not observed in these steps.");
  const what = place.bits === null ? stateLabel(place.state) : `least headroom ${bits(place.bits)}`;
  const path = runPath(run, "step", onward(state, { step: place.step, rank: place.rank, tensor: place.tensor }));
  return el("p", {}, `Worst: ${what} at `, link(path, {}, `step ${count(place.step)}, rank ${count(place.rank)}`), ".");
}

/** Alerts whose finding is of this tensor. Pure. @param {readonly import("../types.js").Alert[]} alerts @param {Tensor} tensor */
export function alertsOn(alerts, { fqn, kind }) {
  return alerts.filter(({ finding }) => finding.tensor === fqn && (finding.kind === null || finding.kind === kind));
}

/** @param {string} run @param {readonly import("../types.js").Alert[]} alerts @param {Parameters<typeof onward>[0]} [state] */
export function alertLines(run, alerts, state = {}) {
  const lines = alerts.slice(0, MOST_ALERTS).map((alert) => el("li", {}, alertGlyph(alert), " ", clip(alert.finding.summary, 200)));
  const more = alerts.length > MOST_ALERTS ? el("li", {}, link(runPath(run, "alerts", onward(state)), {}, `${count(alerts.length - MOST_ALERTS)} more`)) : null;
  return lines.length ? el("ul", { class: "tensor-panel-alerts", "aria-label": "Alerts on this tensor" }, ...lines, more) : null;
}
