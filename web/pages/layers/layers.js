// The Layers page: a heatmap of any two of step, layer and rank, with the modules beside it as a tree.

import { shownRange } from "../../api/url_state.js";
import { draggedRange } from "../../charts/frame.js";
import { NONE_CLOSED, columnAt } from "../../charts/heatmap.js";
import { Lane } from "../../charts/lanes/lane.js";
import { createLaneGroup } from "../../charts/lanes/lane_group.js";
import { createNavigator } from "../../charts/lanes/lane_navigation.js";
import { LANES } from "../../charts/lanes/lane_specs.js";
import { createStatisticLegend } from "../../charts/legend.js";
import { choiceOf, defaultOf } from "../../charts/statistics.js";
import { onTheme } from "../../charts/theme.js";
import { el, replace, settledWidth } from "../../format/dom.js";
import { clip, rankName, steps } from "../../format/numbers.js";
import { createAxesPicker, createKindFilter, createNameFilter, createRankPicker, createSortPicker, createStatisticPicker, createStepField } from "../../widgets/controls/filters.js";
import { createRangeBar } from "../../widgets/controls/range_bar.js";
import { runPage } from "../../widgets/run_page.js";
import { MOST_ROWS, createWorstTable } from "../../widgets/tables/worst_table.js";
import { createComparison } from "./comparison.js";
import { MOST_CLOSED, createModuleTree } from "./module_tree.js";
import { createTensorPanel } from "./tensor_panel.js";

/** Modules the tree lists at most. */
const TREE = 400;
/** The server's answer to a name filter that it cannot read begins so. */
const OF_NAMES = "q: ";

const HINTS = [
  "Drag over the heatmap to see fewer steps, double click to see all.",
  "Click a cell for the exact step and rank; Shift-click it, or click a name, for that layer over time.",
  "Close a module in the tree to see it as one row, the worst of all inside it. Arrow keys walk the tree; left closes, right opens.",
  "A row of several tensors shows the worst of them; a name filter or fewer kinds splits it.",
];

/** @param {import("../../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../../widgets/run_page.js").RunView} */
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

  /** Of the last picture with all around it, in pixels. */
  let height = 0;
  /** The axes that the tree is of. @type {string | null} */
  let answered = null;

  /** As high as the last picture was while there is none: the page does not collapse under who types a filter. @param {boolean} isDrawn */
  function holdHeight(isDrawn) {
    if (isDrawn) main.style.minHeight = "";
    height = isDrawn ? main.offsetHeight : height;
    if (!isDrawn) main.style.minHeight = `${height}px`;
  }

  /** @param {import("../../charts/heatmap.js").HeatmapModel} model */
  function onModel(model) {
    answered = ctx.state.axes;
    table.update(model);
    legend.update(model.statistic);
    tree.element.hidden = !model.modules || (!model.modules.length && !ctx.state.q); // a filter does not move the page while it is typed
    if (model.modules) tree.update(model.modules, model.statistic ?? null, model.meta.closed);
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
      holdHeight(message === "");
      const isUnread = message.startsWith(OF_NAMES);
      name.showProblem(isUnread ? message.slice(OF_NAMES.length) : "");
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

/** What the main figure is asked for besides steps and size. @param {{state: import("../../types.js").ViewState, run?: import("../../types.js").Run}} view */
function query({ state, run }) {
  const { rank, kinds, q, sort, closed, axes, tensor } = state;
  return {
    rank: rank ?? "all", kind: kinds, q, statistic: state.statistic || (run ? defaultOf(run) : ""), sort, closed: closedIn(closed), tree: axes === "step,rank" ? 0 : TREE,
    tensor: axes === "step,rank" ? tensor : null, places: axes === "tensor,rank" ? 0 : MOST_ROWS,
  };
}

/** Where the reader has chosen nothing, the blocks of a large model. @param {readonly string[]} closed */
const closedIn = (closed) => (closed.length ? closed.filter((path) => path !== NONE_CLOSED).slice(0, MOST_CLOSED) : ["*"]);

export default runPage({
  id: "layers",
  title: "Layers",
  key: "l",
  help: "Headroom of every layer over the steps",
  build,
});

// What to change when no layer is left to show, each with a button that changes it.

/** @param {import("../../types.js").PageContext} ctx */
function createNothingMatches(ctx) {
  const element = el("section", { class: "panel layers-nothing", "data-testid": "nothing-matches", hidden: true });
  /** @param {string} text @param {Partial<import("../../types.js").ViewState>} patch */
  const button = (text, patch) => el("button", { type: "button", click: () => ctx.setState(patch) }, text);
  return {
    element,
    /** @param {boolean} isEmpty */
    update(isEmpty) {
      element.hidden = !isEmpty;
      if (!isEmpty) return;
      const { q, kinds, start, stop, last, tensor, axes, step } = ctx.state;
      const asked = [q && `the name filter “${clip(q, 60)}”`, kinds.length > 0 && `the kinds ${kinds.join(", ")}`, isRange(start, stop, last) && "the steps shown"].filter(Boolean);
      const text = asked.length ? `Nothing is there for ${asked.join(", ")}. To see more, change one of them:` : "No layer was observed in these steps.";
      const changes = [
        q && button("Clear the name filter", { q: "" }),
        kinds.length > 0 && button("All kinds", { kinds: [] }),
        isRange(start, stop, last) && button("All steps", { start: null, stop: null }),
        axes === "tensor,rank" && step !== null && button("All steps shown", { step: null }),
        axes === "step,rank" && tensor !== null && button("All layers", { tensor: null }),
      ];
      replace(element, el("p", {}, text), el("div", {}, ...changes));
    },
  };
}

/** @param {number | null} start @param {number | null} stop @param {number | null | undefined} last */
const isRange = (start, stop, last) => start !== null || stop !== null || (last ?? null) !== null;

// The figure of the layers page for the axes that were chosen: one at a time, made when it is first needed.

/** @typedef {import("../../types.js").ViewState} ViewState */
/** @typedef {import("../../charts/lanes/lane.js").View} View */

/** Pixels a row gets when there is room for it. */
const ROW = 24;
/** Pixels reserved for what stands above and below the heatmap. */
const AROUND = 250;
const LEAST_HEIGHT = 320;
const ORDERS = { "": "call order", name: "by name", worst: "worst first" };

/**
 * @param {import("../../types.js").PageContext} ctx
 * @param {{query: (view: View) => import("../../api/client.js").Query, onModel: (model: any) => void, onFailed: () => void}} given
 * @param {() => void} refetch
 */
function createLayersPicture(ctx, given, refetch) {
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
    /** @param {import("../../types.js").Run} run @param {AbortSignal} signal */
    update: (run, signal) => figure().update({ run, state: ctx.state, range: rangeOf(ctx.state, run) }, signal),
    /** The lane's text in place of a plot, be it a failure; "" where it draws one. */
    message: () => made?.figure.lanes[0].message.textContent ?? "",
    isEmpty: () => isEmpty(made?.figure.lanes[0]),
    /** @param {any} model @param {import("../../charts/heatmap.js").Cell} cell */
    pickCell: (model, cell) => made?.figure.pickCell(model, cell),
    destroy: () => made?.figure.destroy(),
  };
}

/** Whether the server answered that there is nothing: not where the request failed. Pure. @param {Pick<import("../../charts/lanes/lane.js").Lane, "model" | "spec"> | undefined} lane */
export const isEmpty = (lane) => Boolean(lane?.model) && lane?.spec.isEmpty(lane.model) === true;

/** One step of layers by ranks, where one was chosen. @param {ViewState} state @param {import("../../types.js").Run} run */
function rangeOf(state, run) {
  return state.axes === "tensor,rank" && state.step !== null ? { start: state.step, stop: state.step + 1 } : shownRange(state, run);
}

/** @param {View} view */
function title({ run, state, range }) {
  const what = choiceOf(run, state.statistic)?.title ?? state.statistic;
  const order = ORDERS[state.sort];
  if (state.axes === "step,rank") return `${what} by rank, ${state.tensor === null ? "worst of the chosen layers" : "of the chosen layer"}`;
  const one = state.rank === null || state.rank === "all";
  if (state.axes === "tensor,rank") return `${what} by layer and rank, ${range.stop - range.start === 1 ? steps(range) : `worst of ${steps(range)}`}, ${order}`;
  return `${what} by layer, ${one ? "worst of all ranks" : rankName(state.rank)}, ${order}`;
}

// Layers by ranks: the columns are layers and closed modules in the order asked for, the rows are ranks.

/** @typedef {import("../../charts/lanes/lane_pointer.js").Spot} Spot */
/** @typedef {import("../../charts/lanes/lane_specs.js").RanksModel} RanksModel */

/**
 * @param {import("../../types.js").PageContext} ctx @param {import("../../charts/lanes/lane_group.js").LaneEntry} entry @param {() => void} refetch
 */
function createLayersByRank(ctx, { spec, options }, refetch) {
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
    /** @param {import("../../charts/lanes/lane.js").View} view @param {AbortSignal} signal */
    async update(view, signal) {
      const { kinds, q, sort, closed } = view.state;
      const now = JSON.stringify([kinds, q, sort, closed]);
      if (now !== columns) lane.zoomed = null;
      columns = now;
      await lane.update(view, signal);
    },
    /** @param {RanksModel} model @param {import("../../charts/heatmap.js").Cell} cell */
    pickCell(model, cell) {
      if (lane.view && lane.model === model) navigator.pickRankAndLayer(lane, cell, lane.view.range, false);
    },
    destroy() {
      stops.forEach((stop) => stop());
      lane.destroy();
    },
  };
}
