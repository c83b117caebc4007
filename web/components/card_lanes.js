// The lanes of one card or host on the step axis, with its rank's step time and least headroom beneath.

import { el, replace } from "../dom.js";
import { rankName } from "../format.js";
import { EVENTS, THROTTLE, eventModel, throttleModel } from "./gpu_bands.js";
import { GPU_LANES, HOST_LANES, figureOf, lineSpec } from "./gpu_lanes.js";
import { createLaneGroup } from "./lane_group.js";
import { LANES } from "./lane_specs.js";
import { createLegend } from "./legend.js";

/** @typedef {import("../types.js").GpuLanes} GpuLanes */
/** @typedef {import("./lane_group.js").LaneEntry} LaneEntry */

const NOT_TOLD = "n/a: this card does not tell why its clocks are held back.";

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch */
export function createCardLanes(ctx, refetch) {
  const element = el("div", {});
  /** @type {ReturnType<typeof createLaneGroup> | null} */
  let group = null;
  const legend = createLegend();
  let isHost = false;
  /** @type {GpuLanes} */
  let lanes = { rank: 0, key: "", about: {}, times_ns: [], steps: [], values: {}, merge: {}, events: [] };
  /** @type {Record<string, string>} */
  let reasons = {};

  /** @param {import("./gpu_lanes.js").LineLane} lane @returns {LaneEntry} */
  const lineEntry = (lane) => ({ spec: lineSpec(lane), options: { load: async () => figureOf(lane, lanes) } });

  /** @param {import("./lane_specs.js").LaneSpec} spec @param {() => import("./gpu_bands.js").BandModel} read @returns {LaneEntry} */
  const bandEntry = (spec, read) => ({ spec, options: { load: async () => /** @type {any} */ ({ model: read(), meta: {} }) } });

  function cardEntries() {
    const throttle = { ...THROTTLE };
    const told = () => {
      const model = throttleModel(lanes, reasons);
      throttle.empty = model.isKnown ? THROTTLE.empty : NOT_TOLD;
      return model;
    };
    return [...GPU_LANES.map(lineEntry), bandEntry(throttle, told), bandEntry({ ...EVENTS }, () => eventModel(lanes))];
  }

  /** @returns {LaneEntry[]} */
  function entries() {
    const query = () => ({ rank: lanes.rank });
    const of = (/** @type {string} */ title) => () => `${title}, ${rankName(lanes.rank)}`;
    const mine = isHost ? HOST_LANES.map(lineEntry) : cardEntries();
    return [...mine, { spec: LANES.step_time, options: { query, title: of("Step time") } }, { spec: LANES.timeline, options: { query, title: of("Least headroom") } }];
  }

  return {
    element,
    /**
     * @param {GpuLanes} next @param {Record<string, string>} names of throttle bits
     * @param {import("./lane.js").View} view @param {AbortSignal} signal
     */
    async update(next, names, view, signal) {
      lanes = next;
      reasons = names;
      if (!group || isHost !== (next.key === "")) {
        group?.destroy();
        isHost = next.key === "";
        group = createLaneGroup(ctx, entries(), refetch);
        replace(element, group.element, legend.element);
      }
      await group.update(view, signal);
    },
    destroy() {
      group?.destroy();
      legend.destroy();
    },
  };
}
