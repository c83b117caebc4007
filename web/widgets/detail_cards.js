// Cards of figures at the top of a page, each a title and a value; and the panel where there is nothing to show.

import { onward, runPath } from "../api/url_state.js";
import { stateWord } from "../charts/headroom.js";
import { el, link, replace } from "../format/dom.js";
import { bits, count, rankName, scale, seconds } from "../format/numbers.js";
import { reuseRows } from "../format/reuse_rows.js";

export function createDetailCards() {
  const element = el("div", { class: "cards" });
  return {
    element,
    /** @param {Card[]} cards */
    update(cards) {
      element.hidden = cards.length === 0;
      replace(element, ...cards.map(drawCard));
    },
  };
}

/** Why there is nothing, and what to do. @param {string} title */
export function createNothing(title) {
  const body = el("div", { class: "nothing-body" });
  const element = el("section", { class: "panel state-panel", "data-testid": "empty-state", hidden: true }, el("h2", {}, title), body);
  let shown = "";
  return {
    element,
    /** @param {readonly (string | Node)[] | null} lines null: there is something */
    update(lines) {
      element.hidden = lines === null;
      const now = JSON.stringify(lines?.map((line) => (typeof line === "string" ? line : line.textContent)));
      if (now === shown) return; // what the reader is selecting stays
      shown = now;
      replace(body, ...(lines ?? []).map((line) => (typeof line === "string" ? el("p", {}, line) : line)));
    },
  };
}

// The four figures a reader asks for first.

/** @typedef {import("../types.js").Run} Run */
/** @typedef {{title: string, value: string, under?: import("../format/dom.js").Child, level?: string}} Card */

/** @param {import("../types.js").PageContext} ctx */
export function createCards(ctx) {
  const element = el("div", { class: "cards" });
  return {
    element,
    /** @param {Run} run */
    update(run) {
      reuseRows(element, [headroom(run, ctx.state), lossScale(run, ctx.state), skipped(run), stepTime(run)].map(drawCard));
    },
  };
}

/** @param {Card} card */
function drawCard({ title, value, under, level }) {
  return el("div", { class: "panel card", "data-level": level, "data-key": title }, el("h2", {}, title), el("p", { class: "card-value" }, value), el("p", { class: "card-under" }, under ?? " "));
}

/** @param {Run} run @param {import("../types.js").ViewState} state @returns {Card} */
function headroom(run, state) {
  const least = run.least_headroom;
  if (!least) return { title: "Least headroom", value: "none yet" };
  const { step, rank, tensor } = least;
  const under = link(runPath(run.id, "step", onward(state, { step, rank, tensor })), {}, `step ${count(step)}, ${rankName(rank)}`);
  return { title: "Least headroom", value: headroomText(least), under, level: run.verdict.level };
}

/** @param {import("../types.js").LeastHeadroom} least */
export function headroomText(least) {
  return least.bits === null ? stateWord(least.state) : bits(least.bits);
}

/** @param {Run} run @param {import("../types.js").ViewState} state @returns {Card} */
const lossScale = (run, state) => ({ title: "Loss scale", value: scale(run.loss_scale), under: run.loss_scale === null ? "no scaler" : link(runPath(run.id, "loss-scale", onward(state)), {}, "every drop and its cause") });

/** @param {Run} run @returns {Card} */
const skipped = (run) => ({ title: "Skipped steps", value: run.skipped_steps === null ? "none" : count(run.skipped_steps), under: ofSteps(run) });

/** @param {Run} run */
function ofSteps({ first_step, last_step }) {
  return first_step === null || last_step === null ? "" : `of ${count(last_step - first_step + 1)}`;
}

/** @param {Run} run @returns {Card} */
const stepTime = (run) => ({ title: "Step time", value: seconds(run.step_time_s), under: run.state === "live" ? "now" : "last" });
