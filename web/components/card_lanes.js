// The lanes of one card or host on the step axis, with its rank's step time and least headroom beneath; or on the time axis.

import { zoneName } from "../clock_ticks.js";
import { el, replace } from "../dom.js";
import { rankName } from "../format.js";
import { onTime, rangeOf } from "../gpu_series.js";
import { EVENTS, THROTTLE, eventModel, throttleModel } from "./gpu_bands.js";
import { GPU_LANES, HOST_LANES, figureOf, lineSpec } from "./gpu_lanes.js";
import { createLaneGroup } from "./lane_group.js";
import { LANES } from "./lane_specs.js";
import { createLegend } from "./legend.js";
import { createTimeLanes } from "./time_lanes.js";

/** @typedef {import("../types.js").GpuLanes} GpuLanes */
/** @typedef {import("./lane_group.js").LaneEntry} LaneEntry */

const NOT_TOLD = "n/a: this card does not tell why its clocks are held back.";
const ONLY_STEPS = "Step time and headroom of the rank stand on the step axis.";
/** @param {number} origin_ns */
const zoneNote = (origin_ns) => `Times of the time zone ${zoneName(0, origin_ns)}. ${ONLY_STEPS}`;

/**
 * @param {import("../types.js").PageContext} ctx @param {() => void} refetch
 * @param {(span: {start_ns: number, stop_ns: number} | null) => void} zoomed on the time axis
 */
export function createCardLanes(ctx, refetch, zoomed) {
  const element = el("div", {});
  /** @type {Pick<ReturnType<typeof createLaneGroup>, "element" | "update" | "destroy"> | null} */
  let group = null;
  const legend = createLegend();
  let isHost = false;
  let isByTime = false;
  /** @type {import("../gpu_series.js").PlacedLanes} */
  let lanes = { rank: 0, key: "", about: {}, times_ns: [], steps: [], values: {}, merge: {}, events: [] };
  /** @type {Record<string, string>} */
  let reasons = {};

  /** A click on a lane is of this rank too. */
  const query = () => ({ rank: lanes.rank });

  /** @param {import("./gpu_lanes.js").LineLane} lane @returns {LaneEntry} */
  const lineEntry = (lane) => ({ spec: lineSpec(lane), options: { query, load: async () => figureOf(lane, lanes) } });

  /** @param {import("./lane_specs.js").LaneSpec} spec @param {() => import("./gpu_bands.js").BandModel} read @returns {LaneEntry} */
  const bandEntry = (spec, read) => ({ spec, options: { query, load: async () => /** @type {any} */ ({ model: read(), meta: {} }) } });

  function cardEntries() {
    const throttle = { ...THROTTLE };
    const told = () => {
      const model = throttleModel(lanes, reasons);
      throttle.empty = model.isKnown ? THROTTLE.empty : NOT_TOLD;
      return model;
    };
    return [...GPU_LANES.map(lineEntry), bandEntry(throttle, told), bandEntry({ ...EVENTS }, () => eventModel(lanes))];
  }

  const mine = () => (isHost ? HOST_LANES.map(lineEntry) : cardEntries());

  /** What the server draws of the rank stands on the step axis only. @returns {LaneEntry[]} */
  function ofRank() {
    const of = (/** @type {string} */ title) => () => `${title}, ${rankName(lanes.rank)}`;
    return [{ spec: LANES.step_time, options: { query, title: of("Step time") } }, { spec: LANES.timeline, options: { query, title: of("Least headroom") } }];
  }

  function rebuild() {
    group?.destroy();
    const timed = () => /** @type {import("./time_lanes.js").TimedLanes} */ (lanes);
    group = isByTime ? createTimeLanes(ctx, mine(), timed, zoomed) : createLaneGroup(ctx, [...mine(), ...ofRank()], refetch);
    replace(element, group.element, isByTime ? el("p", { class: "muted figure-notes" }, zoneNote(lanes.origin_ns ?? 0)) : legend.element);
    return group;
  }

  return {
    element,
    /**
     * @param {GpuLanes} next @param {Record<string, string>} names of throttle bits
     * @param {import("./lane.js").View} view @param {boolean} byTime @param {AbortSignal} signal
     */
    async update(next, names, view, byTime, signal) {
      lanes = byTime ? onTime(next) : next;
      reasons = names;
      const isOther = isHost !== (next.key === "") || isByTime !== byTime;
      isHost = next.key === "";
      isByTime = byTime;
      const shown = group && !isOther ? group : rebuild();
      await shown.update(byTime ? { ...view, range: rangeOf(lanes) } : view, signal);
    },
    destroy() {
      group?.destroy();
      legend.destroy();
    },
  };
}
