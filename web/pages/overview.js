// Overview: the verdict, four figures, then every lane over one step axis.

import { createCards } from "../components/cards.js";
import { createLaneGroup } from "../components/lane_group.js";
import { LANES } from "../components/lane_specs.js";
import { createLegend } from "../components/legend.js";
import { createRangeBar } from "../components/range_bar.js";
import { mountRunPage } from "../components/run_page.js";
import { PHASES, loaderNote } from "../components/phase_lane.js";
import { createVerdict } from "../components/verdict.js";
import { createWorstTable } from "../components/worst_table.js";
import { el } from "../dom.js";
import { shownRange } from "../url_state.js";

const HINTS = [
  "Drag over a lane to see fewer steps, double click to see all.",
  "Click the timeline for that rank's layers around that step, Shift-click for the step itself.",
  "Click a cell of the layers for the exact step and rank, Shift-click or click a name for that tensor over time.",
];

/** Its place among the lanes. */
const PHASE_LANE = 4;

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../components/run_page.js").RunView} */
function build(ctx, refetch) {
  const verdict = createVerdict();
  const cards = createCards();
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const legend = createLegend();
  const group = createLaneGroup(
    ctx,
    [
      { spec: LANES.loss },
      { spec: LANES.loss_scale },
      { spec: LANES.timeline },
      { spec: LANES.step_time },
      { spec: PHASES, options: { onModel: (model) => showPhases(model) } },
      { spec: LANES.layers, options: { query: () => ({ rank: "all" }), title: () => "Headroom by layer, worst of all ranks, call order", onModel: (model) => table.update(model) } },
    ],
    refetch,
  );
  const phases = group.lanes[PHASE_LANE].element;
  const loader = el("p", { class: "lane-message", "data-testid": "loader-bound", hidden: true });
  phases.append(loader);
  const table = createWorstTable(ctx, group.pickCell);
  const twin = el("details", { class: "twin" }, el("summary", {}, "The layers as a table"), table.element);
  const element = el("div", {}, verdict.element, cards.element, range.element, group.element, legend.element, twin);

  /** Not every run has phases: without any there is no lane. @param {import("../components/phase_lane.js").PhasesModel} model */
  function showPhases(model) {
    const wasHidden = phases.hidden;
    phases.hidden = PHASES.isEmpty(model);
    loader.textContent = loaderNote(model);
    loader.hidden = !loader.textContent;
    if (wasHidden && !phases.hidden) setTimeout(refetch); // it had no width to ask for columns by
  }

  return {
    element,
    async update(run, signal) {
      verdict.update(run.verdict);
      cards.update(run);
      range.update(run);
      await group.update({ run, state: ctx.state, range: shownRange(ctx.state, run) }, signal);
    },
    destroy() {
      group.destroy();
      legend.destroy();
    },
  };
}

/** @type {import("../types.js").Page} */
export default { id: "overview", title: "Overview", path: "/runs/{id}", mount: (root, ctx) => mountRunPage(root, ctx, "Overview", (refetch) => build(ctx, refetch)) };
