// The agent's own time over the steps, as a lane: on the training thread, and on the device.

import * as api from "../api.js";
import { COSTS, costAnswer } from "../agent_cost.js";
import { el } from "../dom.js";
import { seconds } from "../format.js";
import { plainLines } from "../line_drawing.js";
import { points, readLines, valueAt } from "../lines_model.js";

/** @typedef {import("../lines_model.js").LinesModel} LinesModel */
/** @typedef {import("../types.js").Run} Run */

/** One step in so many is measured (the agent's `limits.COST_EVERY`): a value stands for those near it. Steps. */
const MEASURED_EVERY = 17;

/** @param {readonly string[]} series of the run */
export const hasCost = (series) => Object.keys(COSTS).some((name) => series.includes(name));

/** A series of some steps; null where the run has none of that name. @param {Run} run @param {string} name @param {import("../api.js").Query} query @param {AbortSignal} signal */
export function readSeries(run, name, query, signal) {
  return run.series.includes(name) ? api.figure(String(run.id), "series", { ...query, q: name, rows: 1 }, signal) : Promise.resolve(null);
}

/** @type {import("./lane.js").LaneOptions["load"]} */
export const loadCost = async ({ run, state, range }, columns, signal) => {
  const query = { ...range, columns, rank: state.rank ?? "all" };
  return costAnswer(await Promise.all(Object.keys(COSTS).map((name) => readSeries(run, name, query, signal))));
};

/** @param {LinesModel} model @param {number} step */
function readout({ series, meta }, step) {
  const reach = Math.max(MEASURED_EVERY, meta.steps_per_column);
  const said = series.flatMap((one, i) => {
    const value = valueAt(one, step, reach);
    return value === null ? [] : `${Object.values(COSTS)[i].split(",")[0]} ${seconds(value / 1000)}`;
  });
  return said.join(", ") || "not measured";
}

function legend() {
  const item = (/** @type {string} */ look, /** @type {string} */ text) => el("span", { class: "legend-item" }, el("span", { class: "swatch is-line", "data-look": look, "aria-hidden": "true" }), text);
  return el("div", { class: "legend lane-legend" }, item("accent", "host: what the training thread waits for"), item("second", "device: kernels of the agent, beside the training's or between them"));
}

/** @type {import("./lane_specs.js").LaneSpec} */
export const AGENT_COST = {
  name: "agent_cost",
  title: "Time of the agent in a step",
  unit: "ms",
  empty: "It was not measured in these steps: one in 17 is.",
  plotHeight: () => 120,
  read: readLines,
  isEmpty: (/** @type {LinesModel} */ { series }) => !series.some((one) => points(one).length),
  draw: plainLines({ colours: ["accent", "second"], unit: " ms", fromZero: true }),
  readout,
  legend,
};
