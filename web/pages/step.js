// Step: one rank, one step, every frame in call order; the first non-finite one marked.

import * as api from "../api.js";
import { copyButton } from "../components/copy_button.js";
import { createFramesTable } from "../components/frames_table.js";
import { createRanksLane } from "../components/ranks_lane.js";
import { mountRunPage } from "../components/run_page.js";
import { createStepNav } from "../components/step_nav.js";
import { createTracePanel } from "../components/trace_panel.js";
import { el, replace } from "../dom.js";
import { clip, count, reading, scale, seconds } from "../format.js";
import { stateWord } from "../headroom.js";
import { onward } from "../url_state.js";

/** @typedef {import("../types.js").StepAnswer} StepAnswer */

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../components/run_page.js").RunView} */
function build(ctx, refetch) {
  const nav = createStepNav(ctx);
  const summary = el("section", { class: "panel step-summary" });
  const table = createFramesTable(ctx);
  const ranks = createRanksLane(ctx, refetch);
  const missing = el("section", { class: "panel state-panel", "data-testid": "empty-state", hidden: true });
  const text = el("pre", { tabindex: 0, "aria-label": "Text report" });
  const report = el("details", { class: "panel report" }, el("summary", {}, "Text report"), copyButton(() => text.textContent ?? "", "Copy the report"), text);
  const trace = createTracePanel(ctx, refetch);
  const element = el("div", { hidden: true }, nav.element, trace.element, summary, missing, table.element, ranks.element, report);
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
    table.element.hidden = !answer.observed;
    report.hidden = !answer.observed;
    missing.hidden = answer.observed;
    const [heading, why] = missingWords(answer);
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
      await Promise.all([trace.update(run, signal), ranks.update(run, answer.step, signal)]);
    },
    destroy() {
      nav.destroy();
      ranks.destroy();
    },
  };
}

/** What is known of the step. Only a loss scaler tells whether the optimizer's step was taken. @param {StepAnswer} answer @returns {[string, string][]} */
export function factsOf(answer) {
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
  const list = factsOf(answer).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: value === "skipped" || value === "yes" ? "bad" : "" }, value)));
  return [el("h2", {}, `Step ${count(answer.step)}, rank ${answer.rank}`), el("dl", { class: "fact-list" }, ...list), firstBad(answer, showFrame)];
}

/** @param {StepAnswer} answer */
function lossText({ loss, loss_state }) {
  return loss === null && loss_state && loss_state !== "value" ? stateWord(loss_state) : reading(loss);
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
export function missingWords({ step, rank, first_step, last_step, thinned }) {
  if (thinned) {
    return [
      `Step ${count(step)} is not kept by itself`,
      `Before step ${count(thinned.step)} the run is kept in columns of ${count(thinned.steps)} steps, but around events. What they hold together is on the other pages; of this step alone nothing is known.`,
    ];
  }
  return [
    `Nothing is stored for step ${count(step)} of rank ${rank}`,
    `The run has steps ${count(first_step)} to ${count(last_step)}. The rank may have been silent at this step, or its records were dropped; that is not the same as clean.`,
  ];
}

/** @type {import("../types.js").Page} */
export default { id: "step", title: "Step", path: "/runs/{id}/step", mount: (root, ctx) => mountRunPage(root, ctx, "Step", (refetch) => build(ctx, refetch)) };
