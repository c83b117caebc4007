// The Step page: one rank and step with every tensor in call order, the first non-finite one marked, and the way to the
// next.

import * as api from "../../api/client.js";
import { onward, runPath } from "../../api/url_state.js";
import { draggedRange } from "../../charts/frame.js";
import { stateLabel } from "../../charts/statistics.js";
import { columnAt } from "../../charts/heatmap.js";
import { Lane } from "../../charts/lanes/lane.js";
import { LANES } from "../../charts/lanes/lane_specs.js";
import { createLegend } from "../../charts/legend.js";
import { onTheme } from "../../charts/theme.js";
import { el, link, replace, settledWidth } from "../../format/dom.js";
import { clip, count, reading, scale, seconds } from "../../format/numbers.js";
import { copyButton } from "../../widgets/controls/copy_button.js";
import { createNameFilter, createRankPicker } from "../../widgets/controls/filters.js";
import { runPage } from "../../widgets/run_page.js";
import { createStderrTails } from "../../widgets/stderr_tail.js";
import { createTracePanel } from "../../widgets/trace_panel.js";
import { createBatchRows } from "./batch_rows.js";
import { createFramesTable } from "./frames_table.js";

/** @typedef {import("../../types.js").StepAnswer} StepAnswer */

/** @param {import("../../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx, refetch) {
  const nav = createStepNav(ctx);
  const summary = el("section", { class: "panel step-summary" });
  const batch = createBatchRows();
  const table = createFramesTable(ctx);
  const ranks = createRanksLane(ctx, refetch);
  const missing = el("section", { class: "panel state-panel", "data-testid": "empty-state", hidden: true });
  const text = el("pre", { tabindex: 0, "aria-label": "Text report" });
  const report = el("details", { class: "panel report" }, el("summary", {}, "Text report"), copyButton(() => text.textContent ?? "", "Copy the report"), text);
  const trace = createTracePanel(ctx, refetch);
  const stderr = createStderrTails(ctx.params.id);
  const element = el("div", { hidden: true }, nav.element, trace.element, summary, stderr.element, batch.element, missing, table.element, ranks.element, report);
  let shown = "";

  /** @param {StepAnswer} answer */
  function show(answer) {
    const { tensor, q } = ctx.state;
    const now = JSON.stringify([answer, tensor, q, onward(ctx.state)]);
    if (now === shown) return; // a live run does not redraw a step that stays the same
    shown = now;
    element.hidden = false;
    nav.update(answer);
    replace(summary, ...summaryOf(answer, table.show));
    batch.update(answer.batch);
    table.element.hidden = !answer.observed;
    report.hidden = !answer.observed;
    missing.hidden = answer.observed;
    const [heading, why] = missingText(answer);
    replace(missing, el("h2", {}, heading), el("p", {}, why));
    text.textContent = answer.report;
    table.update(answer, tensor, q);
  }

  return {
    element,
    async update(run, signal) {
      const { step, rank } = ctx.state;
      const answer = await api.step(String(run.id), { step, rank: rank === "all" ? null : rank }, signal);
      show(answer);
      void stderr.update([answer.rank], signal);
      await Promise.all([trace.update(run, signal), ranks.update(run, answer.step, signal)]);
    },
    destroy() {
      nav.destroy();
      ranks.destroy();
    },
  };
}

/** What is known of the step. Only a loss scaler reports whether the optimizer's step was taken. @param {StepAnswer} answer @returns {[string, string][]} */
export function stepDetails(answer) {
  const { skipped, found_inf, loss_scale } = answer;
  const hasScaler = skipped !== null || found_inf !== null || loss_scale !== null;
  /** @type {[string, string][]} */
  const scaled = [
    ["Step", skipped ? "skipped" : skipped === null ? "not known" : "taken"],
    ["found_inf", found_inf === null ? "not known" : found_inf ? "yes" : "no"],
  ];
  return [
    ["Loss", lossText(answer)],
    ["Loss scale", scale(loss_scale)],
    ...(hasScaler ? scaled : []),
    ["Step time", seconds(answer.step_time_s)],
    ["Frames", count(answer.frames.length)],
  ];
}

/** @param {StepAnswer} answer @param {(index: number) => void} showFrame */
function summaryOf(answer, showFrame) {
  const list = stepDetails(answer).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: value === "skipped" || value === "yes" ? "bad" : "" }, value)));
  return [el("h2", {}, `Step ${count(answer.step)}, rank ${answer.rank}`), el("dl", { class: "details-list" }, ...list), firstBad(answer, showFrame)];
}

/** @param {StepAnswer} answer */
function lossText({ loss, loss_state }) {
  return loss === null && loss_state && loss_state !== "value" ? stateLabel(loss_state) : reading(loss);
}

/** @param {StepAnswer} answer @param {(index: number) => void} showFrame */
function firstBad(answer, showFrame) {
  if (!answer.observed) return null;
  const index = answer.first_nonfinite;
  if (index === null) return el("p", {}, "Every observed frame is finite.");
  const frame = answer.frames[index];
  const jump = el("button", { type: "button", class: "linklike", click: () => showFrame(index) }, "Show it");
  return el("p", { class: "first-bad" }, el("strong", { class: "bad" }, "First non-finite frame: "), el("code", {}, clip(frame.label)), `, ${frame.what}. `, jump);
}

/** Why there are no frames: heading and text. @param {StepAnswer} answer @returns {[string, string]} */
export function missingText({ step, rank, first_step, last_step, thinned }) {
  if (thinned) {
    return [
      `Step ${count(step)} is not stored by itself`,
      `Before step ${count(thinned.step)} the run is stored in columns of ${count(thinned.steps)} steps, but around events. What they hold together is on the other pages; of this step alone nothing is known.`,
    ];
  }
  return [
    `Nothing is stored for step ${count(step)} of rank ${rank}`,
    `The run has steps ${count(first_step)} to ${count(last_step)}. The rank may have been silent at this step, or its records were dropped; that is not the same as clean.`,
  ];
}

export default runPage({
  id: "step",
  title: "Step",
  under: "layers",
  build,
});

// Previous and next: step, rank, non-finite step.

/** @param {import("../../types.js").PageContext} ctx */
function createStepNav(ctx) {
  const run = ctx.params.id;
  const picker = createRankPicker(ctx, { all: false });
  const name = createNameFilter(ctx);
  const input = el("input", { type: "number", min: 0, name: "step", "aria-label": "Step" });
  const form = el("form", { class: "inline-form", submit: go }, el("label", { class: "field" }, "Step ", input), el("button", { type: "submit", class: "quiet" }, "Go"));
  const jumps = el("div", { class: "jumps" });

  /** @param {SubmitEvent} event */
  function go(event) {
    event.preventDefault();
    if (input.value !== "") ctx.setState({ step: Number(input.value) });
  }

  /** @param {StepAnswer} answer */
  function links(answer) {
    const { step, rank, ranks, first_step, last_step } = answer;
    const at = ranks.indexOf(rank);
    const to = jumper(run, answer, ctx.state);
    return [
      to("Previous step", { step: step > first_step ? step - 1 : null, rank }),
      to("Next step", { step: step < last_step ? step + 1 : null, rank }),
      to("Previous rank", { step, rank: ranks[at - 1] ?? null }),
      to("Next rank", { step, rank: ranks[at + 1] ?? null }),
      to("Previous non-finite step", { step: answer.previous_nonfinite_step, rank }),
      to("Next non-finite step", { step: answer.next_nonfinite_step, rank }),
    ];
  }

  return {
    element: el("div", { class: "filters" }, form, picker.element, name.element, jumps),
    /** @param {StepAnswer} answer */
    update(answer) {
      if (document.activeElement !== input) input.value = String(answer.step);
      picker.update(answer.ranks, answer.rank);
      name.update();
      replace(jumps, ...links(answer));
    },
    destroy: name.destroy,
  };
}

/**
 * A link to another step or rank, or the same text dimmed where there is none.
 * @param {string} run @param {StepAnswer} answer @param {import("../../types.js").ViewState} state
 * @returns {(name: string, to: {step: number | null, rank: number | null}) => HTMLElement}
 */
const jumper = (run, answer, state) => (name, { step, rank }) => {
  if (step === null || rank === null) return el("span", { class: "jump", "aria-disabled": "true" }, name);
  const { q, tensor } = state;
  const carried = rank !== answer.rank ? { tensor } : {};
  return link(runPath(run, "step", onward(state, { step, rank, q, ...carried })), { class: "jump" }, name);
};

// Every rank's tensors at the step that is shown: rank by tensor, in call order. Only where there are several ranks.

/** @typedef {import("../../types.js").Run} Run */
/** @typedef {import("../../charts/lanes/lane_specs.js").RanksModel} RanksModel */

/** @param {import("../../types.js").PageContext} ctx @param {() => void} refetch */
function createRanksLane(ctx, refetch) {
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
    if (rank === null) ctx.notify("This row is several ranks: choose one above.");
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
