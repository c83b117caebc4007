// Layers: any two of step, layer and rank, of any statistic, with the modules beside them as a tree.

import { createComparison } from "../components/comparison.js";
import { createKindFilter, createNameFilter, createRankPicker } from "../components/filters.js";
import { createAxesPicker, createSortPicker, createStatisticPicker, createStepField } from "../components/layer_choices.js";
import { createLayersPicture } from "../components/layers_picture.js";
import { createModuleTree } from "../components/module_tree.js";
import { createNothingMatches } from "../components/nothing_matches.js";
import { createRangeBar } from "../components/range_bar.js";
import { mountRunPage } from "../components/run_page.js";
import { createStatisticLegend } from "../components/statistic_legend.js";
import { createTensorPanel } from "../components/tensor_panel.js";
import { createWorstTable } from "../components/worst_table.js";
import { el } from "../dom.js";
import { MOST_CLOSED } from "../module_tree_model.js";
import { shownRange } from "../url_state.js";

/** Modules the tree lists at most. */
const TREE = 400;
/** What the server says of a name filter that it cannot read begins so. */
const OF_NAMES = "q: ";

const HINTS = [
  "Drag over the heatmap to see fewer steps, double click to see all.",
  "Click a cell for the exact step and rank; Shift-click it, or click a name, for that layer over time.",
  "Close a module in the tree to see it as one row, the worst of all inside it. Arrow keys walk the tree; left closes, right opens.",
  "A row that stands for several tensors shows the worst of them; a name filter or fewer kinds opens it up.",
];

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../components/run_page.js").RunView} */
function build(ctx, refetch) {
  const rank = createRankPicker(ctx, { all: true });
  const kinds = createKindFilter(ctx);
  const name = createNameFilter(ctx);
  const choices = [createAxesPicker(ctx), createStatisticPicker(ctx), createSortPicker(ctx), createStepField(ctx)];
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const legend = createStatisticLegend();
  const picture = createLayersPicture(ctx, { query, onModel, onFailed }, refetch);
  const table = createWorstTable(ctx, picture.pickCell, query);
  const tree = createModuleTree(ctx);
  const nothing = createNothingMatches(ctx);
  const comparison = createComparison(ctx, refetch);
  const main = el("div", { class: "layers-main" }, range.strip, picture.element, nothing.element, legend.element, comparison.element, table.element);
  // What opens at the right for a chosen tensor; empty and hidden while there is none.
  const aside = el("aside", { class: "layers-panel", "aria-label": "The chosen layer", hidden: true });
  const panel = createTensorPanel(ctx, refetch, aside);
  const filters = el("div", { class: "filters" }, ...choices.map((choice) => choice.element), rank.element, name.element, kinds.element, name.help, name.problem);

  /** The axes that the tree is of. @type {string | null} */
  let answered = null;

  /** @param {import("../heatmap_model.js").HeatmapModel} model */
  function onModel(model) {
    answered = ctx.state.axes;
    table.update(model);
    legend.update(model.statistic);
    tree.element.hidden = !model.modules?.length;
    if (model.modules) tree.update(model.modules, model.statistic ?? null);
  }

  function onFailed() {
    table.element.hidden = true;
    if (answered !== ctx.state.axes) tree.element.hidden = true;
  }

  return {
    element: el("div", {}, filters, range.element, el("div", { class: "layers-body" }, tree.element, main, aside)),
    async update(run, signal) {
      rank.update(run.ranks.map((one) => one.rank), ctx.state.rank);
      kinds.update(run.kinds);
      name.update();
      choices.forEach((choice) => choice.update(run));
      range.update(run);
      // In its place before the answer, so that the picture is not drawn in another width first.
      if (answered !== ctx.state.axes) tree.element.hidden = query(ctx).tree === 0;
      const view = { run, state: ctx.state, range: shownRange(ctx.state, run) };
      await Promise.all([panel.update(run, signal), picture.update(run, signal), comparison.update(view, signal)]);
      const message = picture.message();
      const isUnread = message.startsWith(OF_NAMES);
      name.say(isUnread ? message.slice(OF_NAMES.length) : "");
      nothing.update(message !== "" && !isUnread && picture.isEmpty());
    },
    destroy() {
      name.destroy();
      picture.destroy();
      comparison.destroy();
      panel.destroy();
      legend.destroy();
    },
  };
}

/** What the main figure is asked for besides steps and size. @param {{state: import("../types.js").ViewState}} view */
function query({ state }) {
  const { rank, kinds, q, statistic, sort, closed, axes, tensor } = state;
  return {
    rank: rank ?? "all", kind: kinds, q, statistic, sort, closed: closed.slice(0, MOST_CLOSED), tree: axes === "step,rank" ? 0 : TREE,
    tensor: axes === "step,rank" ? tensor : null,
  };
}

/** @type {import("../types.js").Page} */
export default { id: "layers", title: "Layers", path: "/runs/{id}/layers", mount: (root, ctx) => mountRunPage(root, ctx, "Layers", (refetch) => build(ctx, refetch)) };
