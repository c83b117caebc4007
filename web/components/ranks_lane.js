// Every rank's tensors at the step that is shown: rank by tensor, in call order. Only where there are several ranks.

import { draggedRange } from "../figure_frame.js";
import { columnAt } from "../heatmap_model.js";
import { el } from "../dom.js";
import { onTheme } from "../theme.js";
import { settledWidth } from "../watch_width.js";
import { Lane } from "./lane.js";
import { LANES } from "./lane_specs.js";
import { createLegend } from "./legend.js";

/** @typedef {import("../types.js").Run} Run */
/** @typedef {import("./lane_specs.js").RanksModel} RanksModel */

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch */
export function createRanksLane(ctx, refetch) {
  const element = el("div", { class: "lanes step-ranks" });
  /** @type {Lane | null} */
  let lane = null;
  /** @type {(() => void)[]} */
  let stops = [];
  /** What the figure was last fetched for: it is not fetched anew while nothing can have changed in it. */
  let drawn = "";

  function create() {
    const made = new Lane(LANES.ranks, {}, {
      hover: (_, spot) => made.show(spot?.step ?? null, spot?.row ?? null),
      pick: (_, spot) => open(made, spot.row, spot.step),
      pickLabel: (_, row) => open(made, row, null),
      zoom: (low, high) => made.zoom(draggedRange(low, high)),
      reset: () => made.zoom(null),
    });
    const legend = createLegend();
    element.append(made.element, legend.element);
    stops = [onTheme(() => void made.render()), settledWidth(element, () => resized(made), refetch), legend.destroy];
    return made;
  }

  /** @param {Lane} made */
  function resized(made) {
    void made.render();
    drawn = "";
  }

  /** The frames of that rank, at that tensor. @param {Lane} from @param {number | null} row @param {number | null} place */
  function open(from, row, place) {
    /** @type {RanksModel} */
    const model = from.model;
    const rank = row === null ? null : model.rows[row].rank;
    const column = place === null ? null : columnAt(model, place);
    const tensor = column === null ? null : (model.tensors[column].tensor ?? model.tensors[column].tensors?.[0] ?? null);
    if (rank === null) ctx.say("This row stands for several ranks: choose one above.");
    else ctx.setState(tensor === null ? { rank } : { rank, tensor });
  }

  return {
    element,
    /** @param {Run} run @param {number} step @param {AbortSignal} signal */
    async update(run, step, signal) {
      if (run.ranks.length < 2) return;
      lane ??= create();
      const reached = run.ranks.filter((rank) => rank.last_step !== null && rank.last_step >= step).length;
      const now = JSON.stringify([step, run.ranks.length, reached]);
      if (now === drawn) return;
      await lane.update({ run, state: ctx.state, range: { start: step, stop: step + 1 } }, signal);
      drawn = now;
    },
    destroy() {
      stops.forEach((stop) => stop());
      lane?.destroy();
    },
  };
}
