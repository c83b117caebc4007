// A comparison under the layers: what to compare with, the difference as a picture and as a table, and what was left out.

import { el, replace } from "../dom.js";
import { rankName } from "../format.js";
import { comparisonSpec } from "./comparison_lane.js";
import { notesOf, parseAgainst, sidesOf } from "./comparison_model.js";
import { createComparisonPicker } from "./comparison_picker.js";
import { createComparisonTable } from "./comparison_table.js";
import { createPlainLanes } from "./plain_lanes.js";

/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {import("./lane.js").View} View */
/** @typedef {import("./comparison_model.js").ComparisonModel} ComparisonModel */

/** @param {PageContext} ctx @param {() => void} refetch */
export function createComparison(ctx, refetch) {
  const picker = createComparisonPicker(ctx);
  const body = el("div", { class: "comparison-body" });
  const element = el("section", { class: "comparison", "aria-label": "Comparison" }, picker.element, body);
  /** @type {ReturnType<typeof createBody> | null} */
  let open = null;
  let shown = "";

  function close() {
    open?.destroy();
    open = null;
    replace(body);
  }

  return {
    element,
    /** @param {View} view @param {AbortSignal} signal */
    async update(view, signal) {
      const { against } = view.state;
      const key = JSON.stringify([against, view.state.rank]);
      picker.update(view.run);
      if (key !== shown || !against) close();
      shown = key;
      if (!against) return;
      if (!open) {
        open = createBody(ctx, refetch);
        replace(body, open.element);
      }
      await open.update(view, signal);
    },
    destroy() {
      close();
      picker.destroy();
    },
  };
}

/** One comparison, from when it is chosen until another is. @param {PageContext} ctx @param {() => void} refetch */
function createBody(ctx, refetch) {
  const sides = sidesOf(parseAgainst(ctx.state.against), ctx.state.rank);
  const table = createComparisonTable(ctx, sides);
  const notes = el("ul", { class: "comparison-notes muted" });
  const picked = {
    pick: (/** @type {import("./lane.js").Lane} */ lane, /** @type {import("./lane_pointer.js").Spot} */ spot) => void (spot.row !== null && choose(lane, spot.row)),
    pickLabel: choose,
  };
  const lanes = createPlainLanes(ctx, [{ spec: comparisonSpec(ctx), options: { query, title, onModel: show, onFailed } }], picked, refetch);

  /** @param {import("./lane.js").Lane} lane @param {number} row */
  function choose(lane, row) {
    const found = lane.rows()[row];
    if (found.tensor !== null) ctx.setState({ tensor: found.tensor });
    else ctx.say(`This row stands for ${found.count} tensors: a name filter or fewer kinds opens it up.`);
  }

  /** @param {ComparisonModel} model */
  function show({ meta }) {
    table.update(meta.losses ?? []);
    replace(notes, ...notesOf(meta).map((note) => el("li", {}, note)));
  }

  /** The lane says why; what is told under it is of another view then. */
  function onFailed() {
    table.element.hidden = true;
    replace(notes);
  }

  return {
    element: el("div", {}, lanes.element, notes, table.element),
    update: lanes.update,
    destroy: lanes.destroy,
  };
}

/** @param {View} view */
const query = ({ state }) => ({ rank: state.rank ?? "all", kind: state.kinds, q: state.q, against: state.against });

/** @param {View} view */
function title({ state }) {
  const against = parseAgainst(state.against);
  const here = state.rank === null || state.rank === "all" ? "worst of all ranks" : rankName(state.rank);
  return `Difference in headroom, ${here} compared with ${against?.kind} ${against?.number ?? ""}, call order`;
}
