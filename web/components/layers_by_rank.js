// Layers by ranks: the columns are layers and closed modules in the order asked for, the rows are ranks.

import { draggedRange } from "../figure_frame.js";
import { columnAt } from "../heatmap_model.js";
import { el } from "../dom.js";
import { onTheme } from "../theme.js";
import { settledWidth } from "../watch_width.js";
import { Lane } from "./lane.js";
import { createNavigator } from "./lane_navigation.js";

/** @typedef {import("./lane_pointer.js").Spot} Spot */
/** @typedef {import("./lane_specs.js").RanksModel} RanksModel */

/**
 * @param {import("../types.js").PageContext} ctx @param {import("./lane_group.js").LaneEntry} entry @param {() => void} refetch
 */
export function createLayersByRank(ctx, { spec, options }, refetch) {
  const navigator = createNavigator(ctx);
  /** @type {Lane} */
  const lane = new Lane(spec, options ?? {}, {
    hover: (_, spot) => lane.show(spot?.step ?? null, spot?.row ?? null),
    pick: (_, spot) => open(spot),
    pickLabel: navigator.pickLabel,
    zoom: (low, high) => lane.zoom(draggedRange(low, high)),
    reset: () => lane.zoom(null),
  });
  const element = el("div", { class: "lanes" }, lane.element);
  const stops = [onTheme(() => void lane.render()), settledWidth(element, () => void lane.render(), refetch)];
  /** What its columns are: a zoom on others would show something else. */
  let columns = "";

  /** @param {Spot} spot */
  function open({ step, row, shift }) {
    const column = columnAt(lane.model, step);
    if (column !== null && row !== null && lane.view) navigator.pickRankAndLayer(lane, { row, column }, lane.view.range, shift);
  }

  return {
    element,
    lanes: [lane],
    /** @param {import("./lane.js").View} view @param {AbortSignal} signal */
    async update(view, signal) {
      const { kinds, q, sort, closed } = view.state;
      const now = JSON.stringify([kinds, q, sort, closed]);
      if (now !== columns) lane.zoomed = null;
      columns = now;
      await lane.update(view, signal);
    },
    /** @param {RanksModel} model @param {import("../heatmap_model.js").Cell} cell */
    pickCell(model, cell) {
      if (lane.view && lane.model === model) navigator.pickRankAndLayer(lane, cell, lane.view.range, false);
    },
    destroy() {
      stops.forEach((stop) => stop());
      lane.destroy();
    },
  };
}
