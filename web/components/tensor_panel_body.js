// What the panel of one tensor shows: facts, magnitudes, spread over ranks, exponents, its worst place, alerts, ways on.

import { notableAlerts } from "../alert_pages.js";
import * as api from "../api.js";
import { el, link } from "../dom.js";
import { clip } from "../format.js";
import { renew } from "../renew.js";
import { onward, runPath, shownRange } from "../url_state.js";
import { EXPONENTS } from "./exponent_lane.js";
import { LANES } from "./lane_specs.js";
import { PERCENTILES, percentileTitle } from "./percentile_lane.js";
import { createPlainLanes } from "./plain_lanes.js";
import { alertLines, alertsOn, tensorFacts, worstPlace } from "./tensor_facts.js";

/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {import("../types.js").Run} Run */
/** @typedef {import("../types.js").Tensor} Tensor */

/** Left margin: only powers of two and bits stand there. Pixels. */
const LABELS = 48;
const LINE_HEIGHT = 190;
const EXPONENT_HEIGHT = 170;

/** @param {string} text @param {() => void} close */
export function panelHead(text, close) {
  const heading = el("h2", { class: "tensor-name", tabindex: -1, title: text }, clip(text));
  const button = el("button", { type: "button", class: "quiet", click: close, title: "Close (Escape)" }, "Close");
  return { heading, element: el("header", { class: "tensor-panel-head" }, heading, button) };
}

/** One tensor's part, from when it is chosen until another is. @param {PageContext} ctx @param {() => void} refetch @param {Tensor} tensor @param {() => void} close */
export function createTensorBody(ctx, refetch, tensor, close) {
  const { heading, element: header } = panelHead(tensor.label, close);
  const worst = el("div", {});
  const alerts = el("div", {});
  const ways = el("p", { class: "jumps" });
  const lanes = createPlainLanes(ctx, entriesOf(tensor.tensor), { pick: (_, spot) => void openStep(spot.step), pickLabel: () => {} }, refetch);

  /** The worst rank of a step. @param {number} step */
  async function openStep(step) {
    try {
      const place = await placeOf(ctx, { start: step, stop: step + 1 }, tensor.tensor);
      if (!place) return ctx.say("Nothing was observed here.");
      return ctx.navigate(runPath(ctx.params.id, "step", onward(ctx.state, { step: place.step, rank: place.rank, tensor: place.tensor })));
    } catch (error) {
      return ctx.say(`The step could not be looked up: ${messageOf(error)}`);
    }
  }

  /** @param {string} run @param {AbortSignal} signal */
  async function updateAlerts(run, signal) {
    try {
      renew(alerts, alertLines(run, alertsOn(await notableAlerts(run, signal), tensor), ctx.state));
    } catch (error) {
      if (signal.aborted) throw error; // what comes after it tells of them
      renew(alerts, el("p", { class: "muted" }, `Its alerts could not be read: ${messageOf(error)}`));
    }
  }

  return {
    heading,
    element: el("section", { class: "panel tensor-panel" }, header, tensorFacts(tensor), worst, alerts, ways, lanes.element),
    /** @param {Run} run @param {AbortSignal} signal */
    async update(run, signal) {
      const id = String(run.id);
      const range = shownRange(ctx.state, run);
      renew(ways, el("span", {}, link(runPath(id, "tensor", onward(ctx.state, { rank: ctx.state.rank, tensor: tensor.tensor })), {}, "Open the Tensor page")));
      const place = placeOf(ctx, range, tensor.tensor, signal).then((found) => renew(worst, worstPlace(id, found, ctx.state)));
      await Promise.all([place, updateAlerts(id, signal), lanes.update({ run, state: ctx.state, range }, signal)]);
    },
    destroy: lanes.destroy,
  };
}

/** @param {unknown} error */
const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/** @param {number} tensor @returns {import("./lane_group.js").LaneEntry[]} */
function entriesOf(tensor) {
  /** @type {{ranks?: number, observed_ranks?: number}} */
  let told = {};
  const left = LABELS;
  const ofRank = (/** @type {import("./lane.js").View} */ { state }) => ({ rank: state.rank ?? "all", tensor });
  const overRanks = {
    left,
    query: () => ({ rank: "all", tensor }),
    onModel: (/** @type {any} */ model) => (told = model.meta),
    title: () => percentileTitle(told),
  };
  return [
    { spec: { ...LANES.tensor, plotHeight: () => LINE_HEIGHT }, options: { query: ofRank, left } },
    { spec: PERCENTILES, options: overRanks },
    { spec: { ...EXPONENTS, plotHeight: () => EXPONENT_HEIGHT }, options: { query: ofRank, left } },
  ];
}

/** Where a tensor is worst in a range; null where it was not observed. @param {PageContext} ctx @param {import("../types.js").StepRange} range @param {number} tensor @param {AbortSignal} [signal] */
async function placeOf(ctx, range, tensor, signal) {
  try {
    return await api.locate(ctx.params.id, { ...range, rank: ctx.state.rank ?? "all", tensor }, signal);
  } catch (error) {
    if (error instanceof api.ApiError && error.code === "nothing_there") return null;
    throw error;
  }
}
