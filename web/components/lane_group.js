// Lanes on one step axis: one cursor, one zoom, one update.

import { el } from "../dom.js";
import { draggedRange } from "../figure_frame.js";
import { count } from "../format.js";
import { onTheme } from "../theme.js";
import { Lane } from "./lane.js";
import { createNavigator } from "./lane_navigation.js";

/** @typedef {import("./lane_pointer.js").Spot} Spot */
/** @typedef {import("./lane.js").View} View */
/** @typedef {{spec: import("./lane_specs.js").LaneSpec, options?: import("./lane.js").LaneOptions}} LaneEntry */

/** A new width asks for new columns once it stays. Milliseconds. */
const SETTLE_MS = 250;

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
  const element = el("div", { class: "lanes" }, ...lanes.map((lane) => lane.element));
  const stops = [onTheme(redraw), watchWidth(element, resized)];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let settle;

  /** @param {Lane} source @param {Spot | null} spot */
  function hover(source, spot) {
    for (const lane of lanes) {
      lane.show(spot?.step ?? null, lane === source ? (spot?.row ?? null) : null);
    }
    if (spot) source.readout.textContent = `step ${count(spot.step)} · ${source.readout.textContent}`;
  }

  function redraw() {
    for (const lane of lanes) lane.render();
  }

  function resized() {
    redraw();
    clearTimeout(settle);
    settle = setTimeout(refetch, SETTLE_MS);
  }

  return {
    element,
    lanes,
    pickCell: navigator.pickCell,
    pickPoint: navigator.pickPoint,
    /** @param {View} view @param {AbortSignal} signal */
    async update(view, signal) {
      await Promise.all(lanes.map((lane) => lane.update(view, signal)));
    },
    destroy() {
      clearTimeout(settle);
      stops.forEach((stop) => stop());
      lanes.forEach((lane) => lane.destroy());
    },
  };
}

/** Calls back when the width, and not only the height, changed. @param {HTMLElement} element @param {() => void} changed */
export function watchWidth(element, changed) {
  let width = 0;
  const observer = new ResizeObserver(() => {
    const before = width;
    width = element.clientWidth;
    if (before && width && before !== width) changed();
  });
  observer.observe(element);
  return () => observer.disconnect();
}
