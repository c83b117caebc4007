// Tensor: one tensor's magnitudes over the steps, against its dtype's limits.

import { EXPONENTS } from "../components/exponent_lane.js";
import { createExponentTable } from "../components/exponent_table.js";
import { createRankPicker } from "../components/filters.js";
import { createLaneGroup } from "../components/lane_group.js";
import { LANES } from "../components/lane_specs.js";
import { createRangeBar } from "../components/range_bar.js";
import { mountRunPage } from "../components/run_page.js";
import { tensorFacts } from "../components/tensor_facts.js";
import { createTensorTable } from "../components/tensor_table.js";
import { el, link } from "../dom.js";
import { clip, rankName } from "../format.js";
import { cadenceNote } from "../lines_model.js";
import { renew } from "../renew.js";
import { createTensorList } from "../tensor_list.js";
import { onward, runPath, shownRange } from "../url_state.js";

/** @typedef {import("../types.js").Tensor} Tensor */
/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {import("../lines_model.js").LinesModel} LinesModel */

/** Left margin: only powers of two stand there. Pixels. */
const LABELS = 52;
/** Pixels kept for what stands above the figure, and for the head of the table below it. */
const AROUND = 500;

const HINTS = ["The line is the largest finite magnitude of each step, circles the smallest non-zero one.", "Click a point for that step's frames. Drag to see fewer steps, double click to see all."];

/** @param {PageContext} ctx @param {() => void} refetch @returns {import("../components/run_page.js").RunView} */
function build(ctx, refetch) {
  const rank = createRankPicker(ctx, { all: true });
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))), () => LABELS);
  const facts = el("section", { class: "panel facts-panel" });
  const walk = el("div", { class: "jumps" });
  const notes = el("p", { class: "muted figure-notes" });
  const options = { query, title, left: LABELS, onModel: show, onFailed };
  const plotHeight = Math.max(LANES.tensor.plotHeight(1), window.innerHeight - AROUND);
  const exponents = createExponentTable();
  const list = createTensorList(ctx.params.id);
  const entries = [
    { spec: { ...LANES.tensor, plotHeight: () => plotHeight }, options },
    { spec: EXPONENTS, options: { query, left: LABELS, onModel: showExponents } },
  ];
  const group = createLaneGroup(ctx, entries, refetch);
  const exponentLane = group.lanes[1].element;
  const table = createTensorTable((step) => group.lanes[0].model && group.pickPoint(group.lanes[0], step));
  const element = el("div", {}, facts, el("div", { class: "filters" }, rank.element, walk), range.element, group.element, notes, el("div", { class: "lanes" }, exponents.element, table.element));

  /** @param {LinesModel} model */
  function show(model) {
    notes.textContent = notesFor(model);
    table.update(model);
  }

  /** What is said below the figure is of another view then. */
  function onFailed() {
    notes.textContent = "";
    table.element.hidden = true;
  }

  /** Few runs have histograms: without one nothing of them is shown. @param {import("../components/exponents_model.js").ExponentsModel} model */
  function showExponents(model) {
    const wasHidden = exponentLane.hidden;
    exponentLane.hidden = EXPONENTS.isEmpty(model);
    exponents.update(model);
    if (wasHidden && !exponentLane.hidden) setTimeout(refetch); // it had no width to ask for columns by
  }

  return {
    element,
    async update(run, signal) {
      const tensors = await list(ctx.state.tensor, signal);
      const chosen = choose(tensors, ctx.state.tensor, run);
      if (!chosen) return void renew(facts, el("h2", {}, "No such tensor"), el("p", {}, "This run has none of that number. ", link(runPath(run.id, "layers", onward(ctx.state)), {}, "All layers")));
      if (ctx.state.tensor === null) return ctx.setState({ tensor: chosen.tensor }, { replace: true });
      rank.update(run.ranks.map((one) => one.rank), ctx.state.rank);
      range.update(run);
      renew(facts, el("h2", { class: "tensor-name", title: chosen.label }, clip(chosen.label)), tensorFacts(chosen));
      renew(walk, ...neighbours(ctx, tensors, chosen).map((way) => el("span", {}, way))); // a link that was followed keeps the focus
      return group.update({ run, state: ctx.state, range: shownRange(ctx.state, run) }, signal);
    },
    destroy() {
      group.destroy();
      exponents.destroy();
    },
  };
}

/** The one asked for; without a wish the one with the least headroom. @param {Tensor[]} tensors @param {number | null} wanted @param {import("../types.js").Run} run */
function choose(tensors, wanted, run) {
  const number = wanted ?? run.least_headroom?.tensor ?? tensors[0]?.tensor;
  return tensors.find(({ tensor }) => tensor === number);
}

/** @param {import("../components/lane.js").View} view */
const query = ({ state }) => ({ rank: state.rank ?? "all", tensor: state.tensor });

/** @param {import("../components/lane.js").View} view */
const title = ({ state }) => `abs max and abs min, ${rankName(state.rank)}`;

/** @param {PageContext} ctx @param {Tensor[]} tensors @param {Tensor} chosen */
function neighbours(ctx, tensors, chosen) {
  const at = tensors.indexOf(chosen);
  const to = (/** @type {string} */ way, /** @type {Tensor | undefined} */ tensor) =>
    tensor
      ? link(runPath(ctx.params.id, "tensor", { ...ctx.state, tensor: tensor.tensor }), { class: "jump", title: tensor.label }, `${way} in call order`)
      : el("span", { class: "jump", "aria-disabled": "true" }, `${way} in call order`);
  return [to("Previous", tensors[at - 1]), to("Next", tensors[at + 1])];
}

/** @param {LinesModel} model */
function notesFor({ series, meta }) {
  const scaled = meta.loss_scaled ? "Shown as the hardware held it: multiplied by the loss scale." : null;
  return [cadenceNote(series[0], series[1], meta.steps_per_column), scaled].filter(Boolean).join(" ");
}

/** @type {import("../types.js").Page} */
export default { id: "tensor", title: "Tensor", path: "/runs/{id}/tensor", mount: (root, ctx) => mountRunPage(root, ctx, "Tensor", (refetch) => build(ctx, refetch)) };
