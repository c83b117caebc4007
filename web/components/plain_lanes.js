// Lanes on one step axis with one cursor and one zoom, beside a page's main group: without alerts of their own.

import { draggedRange } from "../figure_frame.js";
import { count } from "../format.js";
import { el } from "../dom.js";
import { onTheme } from "../theme.js";
import { settledWidth } from "../watch_width.js";
import { Lane } from "./lane.js";

/** @typedef {import("./lane_pointer.js").Spot} Spot */
/** @typedef {import("./lane.js").View} View */

/**
 * @param {import("../types.js").PageContext} ctx @param {import("./lane_group.js").LaneEntry[]} entries
 * @param {{pick: (lane: Lane, spot: Spot) => void, pickLabel: (lane: Lane, row: number) => void}} picked @param {() => void} refetch
 */
export function createPlainLanes(ctx, entries, picked, refetch) {
  const handlers = {
    ...picked,
    hover,
    zoom: (/** @type {number} */ low, /** @type {number} */ high) => ctx.setState(draggedRange(low, high)),
    reset: () => ctx.setState({ start: null, stop: null }),
  };
  const lanes = entries.map(({ spec, options }) => new Lane(spec, options ?? {}, handlers));
  const element = el("div", { class: "lanes" }, ...lanes.map((lane) => lane.element));
  const stops = [onTheme(redraw), settledWidth(element, resized, refetch)];

  /** @param {Lane} source @param {Spot | null} spot */
  function hover(source, spot) {
    for (const lane of lanes) lane.show(spot?.step ?? null, lane === source ? (spot?.row ?? null) : null);
    if (spot) source.readout.textContent = `step ${count(spot.step)} · ${source.readout.textContent}`;
  }

  function redraw() {
    for (const lane of lanes) void lane.render();
  }

  function resized() {
    for (const lane of lanes) lane.show(null, null); // the cursor stood where it was wide
    redraw();
  }

  return {
    element,
    lanes,
    /** @param {View} view @param {AbortSignal} signal */
    async update(view, signal) {
      await Promise.all(lanes.map((lane) => lane.update(view, signal)));
    },
    destroy() {
      stops.forEach((stop) => stop());
      lanes.forEach((lane) => lane.destroy());
    },
  };
}
