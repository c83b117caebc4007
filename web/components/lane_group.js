// Lanes on one step axis: one cursor, one zoom, one update.

import { stepAxis } from "../alert_marks.js";
import { el } from "../dom.js";
import { draggedRange } from "../figure_frame.js";
import { count } from "../format.js";
import { onTheme } from "../theme.js";
import { settledWidth } from "../watch_width.js";
import { createAlertRow } from "./alert_row.js";
import { Lane } from "./lane.js";
import { createNavigator } from "./lane_navigation.js";

/** @typedef {import("./lane_pointer.js").Spot} Spot */
/** @typedef {import("./lane.js").View} View */
/** @typedef {{spec: import("./lane_specs.js").LaneSpec, options?: import("./lane.js").LaneOptions}} LaneEntry */

/**
 * @param {import("../types.js").PageContext} ctx @param {LaneEntry[]} entries @param {() => void} refetch
 */
export function createLaneGroup(ctx, entries, refetch) {
  const navigator = createNavigator(ctx);
  const handlers = {
    hover,
    pick: navigator.pick,
    pickLabel: navigator.pickLabel,
    zoom: (/** @type {number} */ low, /** @type {number} */ high) => ctx.setState(draggedRange(low, high)),
    reset: () => ctx.setState({ start: null, stop: null }),
  };
  const lanes = entries.map(({ spec, options }) => new Lane(spec, options ?? {}, handlers));
  const alerts = createAlertRow(ctx.params.id, { marked: (steps) => lanes.forEach((lane) => lane.mark(steps)), point });
  const element = el("div", { class: "lanes" }, alerts.element, ...lanes.map((lane) => lane.element));
  const stops = [onTheme(redraw), settledWidth(element, resized, refetch)];
  /** What is pointed at stays so while new data moves it. @type {{source: Lane, spot: Spot} | null} */
  let pointed = null;

  /** @param {Lane} source @param {Spot | null} spot */
  function hover(source, spot) {
    pointed = spot && { source, spot };
    for (const lane of lanes) {
      lane.show(spot?.step ?? null, lane === source ? (spot?.row ?? null) : null);
    }
    if (spot) source.readout.textContent = `step ${count(spot.step)} · ${source.readout.textContent}`;
  }

  /** @param {number | null} step */
  function point(step) {
    for (const lane of lanes) lane.show(step, null);
  }

  function redraw() {
    for (const lane of lanes) lane.render();
  }

  function resized() {
    pointed = null;
    point(null); // the cursor stood where it was wide
    redraw();
  }

  return {
    element,
    lanes,
    /** @param {any} model of one of the lanes @param {import("../heatmap_model.js").Cell} cell */
    pickCell(model, cell) {
      const lane = lanes.find((one) => one.model === model);
      if (lane) navigator.pickCell(lane, cell);
    },
    pickPoint: navigator.pickPoint,
    /** @param {View} view @param {AbortSignal} signal */
    async update(view, signal) {
      const axis = (/** @type {number} */ width) => stepAxis(view.range, width, entries[0].options?.left);
      const drawn = Promise.all(lanes.map((lane) => lane.update(view, signal)));
      await Promise.all([drawn, alerts.update(axis, drawn, signal)]);
      if (pointed) hover(pointed.source, pointed.spot);
      alerts.show(axis); // a pointed-at step has moved with the lanes
    },
    destroy() {
      stops.forEach((stop) => stop());
      alerts.destroy();
      lanes.forEach((lane) => lane.destroy());
    },
  };
}
