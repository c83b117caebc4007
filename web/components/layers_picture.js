// The figure of the layers page for the axes that were chosen: one at a time, made when it is first needed.

import { el, replace } from "../dom.js";
import { rankName, steps } from "../format.js";
import { choiceOf } from "../statistics.js";
import { shownRange } from "../url_state.js";
import { createLaneGroup } from "./lane_group.js";
import { LANES } from "./lane_specs.js";
import { createLayersByRank } from "./layers_by_rank.js";

/** @typedef {import("../types.js").ViewState} ViewState */
/** @typedef {import("./lane.js").View} View */

/** Pixels a row gets when there is room for it. */
const ROW = 24;
/** Pixels kept for what stands above and below the heatmap. */
const AROUND = 250;
const LEAST_HEIGHT = 320;
const ORDERS = { "": "call order", name: "by name", worst: "worst first" };

/**
 * @param {import("../types.js").PageContext} ctx
 * @param {{query: (view: View) => import("../api.js").Query, onModel: (model: any) => void, onFailed: () => void}} given
 * @param {() => void} refetch
 */
export function createLayersPicture(ctx, given, refetch) {
  const element = el("div");
  const maxHeight = Math.max(LEAST_HEIGHT, window.innerHeight - AROUND);
  const plotHeight = (/** @type {number} */ rows) => Math.max(60, rows * ROW);
  /** @param {"layers" | "timeline" | "ranks"} name */
  const entry = (name) => ({ spec: { ...LANES[name], plotHeight }, options: { ...given, maxHeight, title } });
  /** @type {Record<ViewState["axes"], () => ReturnType<typeof createLaneGroup> | ReturnType<typeof createLayersByRank>>} */
  const makers = {
    "": () => createLaneGroup(ctx, [entry("layers")], refetch),
    "step,rank": () => createLaneGroup(ctx, [entry("timeline")], refetch),
    "tensor,rank": () => createLayersByRank(ctx, entry("ranks"), refetch),
  };
  /** @type {{axes: string, figure: ReturnType<typeof makers[""]>} | null} */
  let made = null;

  function figure() {
    const { axes } = ctx.state;
    if (made?.axes !== axes) {
      made?.figure.destroy();
      made = { axes, figure: makers[axes]() };
      replace(element, made.figure.element);
    }
    return made.figure;
  }

  return {
    element,
    /** @param {import("../types.js").Run} run @param {AbortSignal} signal */
    update: (run, signal) => figure().update({ run, state: ctx.state, range: rangeOf(ctx.state, run) }, signal),
    /** What the lane says in place of a plot, be it a failure; "" where it draws one. */
    message: () => made?.figure.lanes[0].message.textContent ?? "",
    isEmpty: () => isEmpty(made?.figure.lanes[0]),
    /** @param {any} model @param {import("../heatmap_model.js").Cell} cell */
    pickCell: (model, cell) => made?.figure.pickCell(model, cell),
    destroy: () => made?.figure.destroy(),
  };
}

/** Whether it was told that there is nothing: not where it could not ask. Pure. @param {Pick<import("./lane.js").Lane, "model" | "spec"> | undefined} lane */
export const isEmpty = (lane) => Boolean(lane?.model) && lane?.spec.isEmpty(lane.model) === true;

/** One step of layers by ranks, where one was chosen. @param {ViewState} state @param {import("../types.js").Run} run */
function rangeOf(state, run) {
  return state.axes === "tensor,rank" && state.step !== null ? { start: state.step, stop: state.step + 1 } : shownRange(state, run);
}

/** @param {View} view */
export function title({ state, range }) {
  const what = choiceOf(state.statistic)?.title.replace(/ \(.*/, "") ?? state.statistic;
  const order = ORDERS[state.sort];
  if (state.axes === "step,rank") return `${what} by rank, ${state.tensor === null ? "worst of the chosen layers" : "of the chosen layer"}`;
  const one = state.rank === null || state.rank === "all";
  if (state.axes === "tensor,rank") return `${what} by layer and rank, ${range.stop - range.start === 1 ? steps(range) : `worst of ${steps(range)}`}, ${order}`;
  return `${what} by layer, ${one ? "worst of all ranks" : rankName(state.rank)}, ${order}`;
}
