// Overview: the verdict, a few figures, then every lane over one step axis.

import { CARDS, createCardsSource } from "../components/cards_lane.js";
import { createCards } from "../components/cards.js";
import { createDeathNote } from "../components/death_note.js";
import { createLaneGroup } from "../components/lane_group.js";
import { LANES } from "../components/lane_specs.js";
import { createLegend } from "../components/legend.js";
import { laneNote, optionalLane } from "../components/optional_lanes.js";
import { PHASES, loaderNote } from "../components/phase_lane.js";
import { createRangeBar } from "../components/range_bar.js";
import { createRunAbout, createRunNote } from "../components/run_about.js";
import { mountRunPage } from "../components/run_page.js";
import { createLoggedLanes, leftOutText } from "../components/series_lanes.js";
import { createTracePanel } from "../components/trace_panel.js";
import { createVerdict } from "../components/verdict.js";
import { WAITS, createWaitsSource } from "../components/waits_lane.js";
import { createWorstTable } from "../components/worst_table.js";
import { el } from "../dom.js";
import { soonAfter } from "../soon_after.js";
import { shownRange } from "../url_state.js";

const HINTS = [
  "Drag over a lane to see fewer steps, double click to see all.",
  "Click the timeline for that rank's layers around that step, Shift-click for the step itself.",
  "Click a cell of the layers for the exact step and rank, Shift-click or click a name for that tensor over time.",
];

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../components/run_page.js").RunView} */
function build(ctx, refetch) {
  const death = createDeathNote();
  const note = createRunNote();
  const about = createRunAbout(ctx, refetch);
  const verdict = createVerdict();
  const cards = createCards(ctx);
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const trace = createTracePanel(ctx, refetch);
  const legend = createLegend();
  const lanes = createOverviewLanes(ctx, refetch, (model) => table.update(model));
  const table = createWorstTable(ctx, lanes.pickCell, ofAllRanks);
  const twin = el("details", { class: "twin" }, el("summary", {}, "The layers as a table"), table.element);
  const element = el("div", {}, note.element, death.element, verdict.element, cards.element, trace.element, range.element, lanes.element, legend.element, twin, about.element);

  /** Then what may stand above the lanes comes before them, so that they need not move. */
  let isFirst = true;

  return {
    element,
    async update(run, signal) {
      note.update(run);
      about.update(run);
      death.update(run);
      verdict.update(run.verdict);
      cards.update(run);
      range.update(run);
      const view = { run, state: ctx.state, range: shownRange(ctx.state, run) };
      const drawn = lanes.update(view, signal);
      await Promise.all([drawn, isFirst ? trace.update(run, signal) : soonAfter(drawn).then(() => trace.update(run, signal))]);
      isFirst = false;
    },
    destroy() {
      lanes.destroy();
      legend.destroy();
    },
  };
}

/** What the layers are asked for: this page has no choice that narrows them. */
const ofAllRanks = () => ({ rank: "all" });

/** All lanes in their order; those that not every run has take no room without anything to show. @param {import("../types.js").PageContext} ctx @param {() => void} refetch @param {(model: any) => void} onLayers */
function createOverviewLanes(ctx, refetch, onLayers) {
  const loader = laneNote("loader-bound");
  const more = laneNote("logged-more");
  const phases = optionalLane(PHASES, { onModel: (model) => say(loader, loaderNote(model)) });
  const waits = optionalLane(WAITS, { load: createWaitsSource(ctx.params.id) });
  const gpus = optionalLane(CARDS, { load: createCardsSource(ctx.params.id) });
  const logged = createLoggedLanes();
  const optional = [phases, waits, gpus, ...logged];
  const layers = { spec: LANES.layers, options: { query: ofAllRanks, title: () => "Headroom by layer, worst of all ranks, call order", onModel: onLayers } };
  const first = [{ spec: LANES.loss }, { spec: LANES.loss_scale }, { spec: LANES.timeline }, { spec: LANES.step_time }];
  const group = createLaneGroup(ctx, [...first, ...optional.map(({ entry }) => entry), layers], refetch);
  optional.forEach((one, i) => one.attach(group.lanes[first.length + i], one === phases && loader));
  group.lanes[first.length + optional.length].element.before(more);
  return {
    ...group,
    /** @param {import("../components/lane.js").View} view @param {AbortSignal} signal */
    async update(view, signal) {
      say(more, leftOutText(view.run.series));
      await group.update(view, signal);
    },
  };
}

/** @param {HTMLElement} note @param {string} text */
function say(note, text) {
  note.textContent = text;
  note.hidden = !text;
}

/** @type {import("../types.js").Page} */
export default { id: "overview", title: "Overview", path: "/runs/{id}", mount: (root, ctx) => mountRunPage(root, ctx, "Overview", (refetch) => build(ctx, refetch)) };
