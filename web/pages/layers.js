// Layers: every tensor against every step, in call order, for one rank or the worst of all.

import { createKindFilter, createNameFilter, createRankPicker } from "../components/filters.js";
import { createLaneGroup } from "../components/lane_group.js";
import { LANES } from "../components/lane_specs.js";
import { createLegend } from "../components/legend.js";
import { createRangeBar } from "../components/range_bar.js";
import { mountRunPage } from "../components/run_page.js";
import { createWorstTable } from "../components/worst_table.js";
import { el } from "../dom.js";
import { rankName } from "../format.js";
import { shownRange } from "../url_state.js";

/** Pixels a row gets when there is room for it. */
const ROW = 24;
/** Pixels kept for what stands above and below the heatmap. */
const AROUND = 250;
const LEAST_HEIGHT = 320;

const HINTS = [
  "Drag over the heatmap to see fewer steps, double click to see all.",
  "Click a cell for the exact step and rank; Shift-click it, or click a name, for that tensor over time.",
  "A row that stands for several tensors shows the worst of them; a name filter or fewer kinds opens it up.",
];

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../components/run_page.js").RunView} */
function build(ctx, refetch) {
  const rank = createRankPicker(ctx, { all: true });
  const kinds = createKindFilter(ctx);
  const name = createNameFilter(ctx);
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const legend = createLegend();
  const maxHeight = Math.max(LEAST_HEIGHT, window.innerHeight - AROUND);
  const spec = { ...LANES.layers, plotHeight: (/** @type {number} */ rows) => Math.max(60, rows * ROW) };
  const group = createLaneGroup(ctx, [{ spec, options: { maxHeight, query, title, onModel: (model) => table.update(model) } }], refetch);
  const table = createWorstTable(ctx, group.pickCell);
  return {
    element: el("div", {}, el("div", { class: "filters" }, rank.element, kinds.element, name.element), range.element, group.element, legend.element, table.element),
    async update(run, signal) {
      rank.update(run.ranks.map((one) => one.rank), ctx.state.rank);
      kinds.update(run.kinds);
      name.update();
      range.update(run);
      await group.update({ run, state: ctx.state, range: shownRange(ctx.state, run) }, signal);
    },
    destroy() {
      name.destroy();
      group.destroy();
      legend.destroy();
    },
  };
}

/** @param {import("../components/lane.js").View} view */
const query = ({ state }) => ({ rank: state.rank ?? "all", kind: state.kinds, q: state.q });

/** @param {import("../components/lane.js").View} view */
function title({ state }) {
  return `Headroom by layer, ${state.rank === null || state.rank === "all" ? "worst of all ranks" : rankName(state.rank)}, call order`;
}

/** @type {import("../types.js").Page} */
export default { id: "layers", title: "Layers", path: "/runs/{id}/layers", mount: (root, ctx) => mountRunPage(root, ctx, "Layers", (refetch) => build(ctx, refetch)) };
