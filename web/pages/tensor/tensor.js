// The Tensor page: one tensor's magnitudes and exponents over the steps, and a table of its extreme steps.

import { createTensorList } from "../../api/queries.js";
import { onward, runPath, shownRange } from "../../api/url_state.js";
import { EXPONENTS, createExponentTable } from "../../charts/lanes/exponents.js";
import { heatOf } from "../../charts/statistics.js";
import { createLaneGroup } from "../../charts/lanes/lane_group.js";
import { LANES } from "../../charts/lanes/lane_specs.js";
import { cadenceNote, mergedSteps, valueAt } from "../../charts/lines.js";
import { el, link } from "../../format/dom.js";
import { bits, clip, count, magnitude, rankName, steps } from "../../format/numbers.js";
import { reuseParts, reuseRows } from "../../format/reuse_rows.js";
import { createRankPicker } from "../../widgets/controls/filters.js";
import { createRangeBar } from "../../widgets/controls/range_bar.js";
import { runPage } from "../../widgets/run_page.js";
import { tensorDetails } from "../../widgets/tensor_details.js";

/** @typedef {import("../../types.js").Tensor} Tensor */
/** @typedef {import("../../types.js").PageContext} PageContext */
/** @typedef {import("../../charts/lines.js").LinesModel} LinesModel */

/** Left margin: only powers of two stand there. Pixels. */
const LABELS = 52;
/** Pixels reserved for what stands above the figure, and for the head of the table below it. */
const AROUND = 500;

const HINTS = ["The line is the largest finite magnitude of each step, circles the smallest non-zero one.", "Click a point for that step's frames. Drag to see fewer steps, double click to see all."];

/** @param {PageContext} ctx @param {() => void} refetch @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx, refetch) {
  const rank = createRankPicker(ctx, { all: true });
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))), () => LABELS);
  const summary = el("section", { class: "panel details-panel" });
  const walk = el("div", { class: "jumps" });
  const notes = el("p", { class: "muted figure-notes" });
  const options = { query, title, left: LABELS, onModel: show, onFailed };
  const plotHeight = Math.max(LANES.tensor.plotHeight(1), window.innerHeight - AROUND);
  const exponents = createExponentTable();
  const list = createTensorList(ctx.params.id);
  const entries = [
    { spec: { ...LANES.tensor, plotHeight: () => plotHeight }, options },
    { spec: EXPONENTS, options: { query, left: LABELS, onModel: showExponents } },
    { spec: LANES.moments, options: { query, left: LABELS } },
  ];
  const group = createLaneGroup(ctx, entries, refetch);
  const exponentLane = group.lanes[1].element;
  const momentLane = group.lanes[2].element;
  const table = createTensorTable((step) => group.lanes[0].model && group.pickPoint(group.lanes[0], step));
  const element = el("div", {}, summary, el("div", { class: "filters" }, rank.element, walk), range.element, group.element, notes, el("div", { class: "lanes" }, exponents.element, table.element));

  /** @param {LinesModel} model */
  function show(model) {
    notes.textContent = notesFor(model);
    table.update(model);
  }

  /** The text below the figure is of another view then. */
  function onFailed() {
    notes.textContent = "";
    table.element.hidden = true;
  }

  /** Few runs have histograms: without one nothing of them is shown. @param {import("../../charts/lanes/exponents.js").ExponentsModel} model */
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
      if (!chosen) return void reuseParts(summary, el("h2", {}, "No such tensor"), el("p", {}, "This run has none of that number. ", link(runPath(run.id, "layers", onward(ctx.state)), {}, "All layers")));
      if (ctx.state.tensor === null) return ctx.setState({ tensor: chosen.tensor }, { replace: true });
      momentLane.hidden = chosen.kind !== "exp_avg_sq";
      rank.update(run.ranks.map((one) => one.rank), ctx.state.rank);
      range.update(run);
      reuseParts(summary, el("h2", { class: "tensor-name", title: chosen.label }, clip(chosen.label)), tensorDetails(chosen));
      reuseParts(walk, ...neighbours(ctx, tensors, chosen).map((way) => el("span", {}, way))); // a link that was followed keeps the focus
      return group.update({ run, state: ctx.state, range: shownRange(ctx.state, run) }, signal);
    },
    destroy() {
      group.destroy();
    },
  };
}

/** The one asked for; without a wish the one with the least headroom. @param {Tensor[]} tensors @param {number | null} wanted @param {import("../../types.js").Run} run */
function choose(tensors, wanted, run) {
  const number = wanted ?? run.least_headroom?.tensor ?? tensors[0]?.tensor;
  return tensors.find(({ tensor }) => tensor === number);
}

/** @param {import("../../charts/lanes/lane.js").View} view */
const query = ({ state }) => ({ rank: state.rank ?? "all", tensor: state.tensor });

/** @param {import("../../charts/lanes/lane.js").View} view */
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

export default runPage({
  id: "tensor",
  title: "Tensor",
  under: "layers",
  build,
});

// The tensor's figure as a table: its first non-finite and its largest steps, each with a way to the frames.

/** Of the step itself, so that it is left out where a point is several steps: the smallest of them may be another's. */
const ABS_MIN = "abs min";
const COLUMNS = ["Step", "abs max", ABS_MIN, "Headroom", ""];
const MOST_ROWS = 12;

/** @param {(step: number) => void} open */
function createTensorTable(open) {
  const body = el("tbody");
  const head = el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col", class: "number" }, name)));
  const caption = el("caption", {}, "First to hold a NaN or Inf, then largest");
  const element = el("div", { class: "panel table-scroll" }, el("table", { class: "dense tensor-table", "data-testid": "tensor-table" }, caption, el("thead", {}, head), body));

  /** Its button opens the step alone, so that a row that stays does what is shown now. @param {LinesModel} model @param {Extreme} extreme */
  function line(model, extreme) {
    const button = el("button", { type: "button", class: "quiet", click: () => open(extreme.step) }, "Open the step");
    const at = extreme.at === null ? steps(mergedSteps(model, extreme.step)) : count(extreme.at);
    const cells = [at, magnitude(extreme.amax), ...(isMerged(model) ? [] : [magnitude(extreme.amin)])];
    return el("tr", { "data-key": extreme.step }, ...cells.map((text) => el("td", { class: "number" }, text)), headroomCell(extreme), el("td", {}, button));
  }

  return {
    element,
    /** @param {LinesModel} model */
    update(model) {
      const rows = extremes(model, MOST_ROWS);
      element.hidden = rows.length === 0;
      head.children[COLUMNS.indexOf(ABS_MIN)].toggleAttribute("hidden", isMerged(model));
      reuseRows(body, rows.map((one) => line(model, one)));
    },
  };
}

/** @param {Extreme} extreme */
function headroomCell({ nonfinite, headroom }) {
  if (nonfinite) return el("td", { class: "number", "data-heat": "bad" }, "not finite");
  return el("td", { class: "number", "data-heat": heatOf(headroom) }, bits(headroom));
}

// The steps of a tensor worth opening: those that held a NaN or Inf, then the largest magnitudes.

/** @typedef {{step: number, at: number | null, amax: number | null, amin: number | null, headroom: number | null, nonfinite: boolean}} Extreme `step`: of its point, `at`: the exact one */

/** @param {import("../../charts/lines.js").LinesModel} model @param {number} limit @returns {Extreme[]} */
export function extremes({ series: [amax, amin, nonfinite], meta }, limit) {
  const reach = meta.steps_per_column / 2;
  const bad = new Set(nonfinite ? Array.from(nonfinite.x) : []);
  const exact = new Map([...stepsOf(nonfinite, meta.steps?.["non-finite"]), ...stepsOf(amax, meta.steps?.amax).filter(([x]) => !bad.has(x))]);
  const at = (/** @type {number} */ step) => {
    const largest = valueAt(amax, step, reach);
    return { step, at: exact.get(step) ?? null, amax: largest, amin: valueAt(amin, step, reach), headroom: headroomOf(largest, meta.limits?.max_finite), nonfinite: bad.has(step) };
  };
  const finite = Array.from(amax.x, at).filter((one) => !one.nonfinite && one.amax !== null);
  finite.sort((a, b) => Number(b.amax) - Number(a.amax) || a.step - b.step);
  return [...[...bad].sort((a, b) => a - b).map(at), ...finite].slice(0, limit);
}

/** Of each point of a line its exact step. @param {import("../../charts/lines.js").Series | undefined} line @param {readonly (number | null)[] | undefined} steps @returns {[number, number | null][]} */
const stepsOf = (line, steps) => Array.from(line?.x ?? [], (x, i) => [x, steps?.[i] ?? null]);

/** @param {LinesModel} model */
const isMerged = ({ meta }) => meta.steps_per_column > 1;

/** @param {number | null} amax @param {number | undefined} maxFinite */
function headroomOf(amax, maxFinite) {
  return amax && maxFinite ? Math.log2(maxFinite / amax) : null;
}
