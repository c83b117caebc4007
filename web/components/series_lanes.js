// Lanes of whatever else a run recorded, a series each: what the program logs, and the scales of further scalers.

import * as api from "../api.js";
import { clip, plural, reading, scale } from "../format.js";
import { plainLines, scaleLines } from "../line_drawing.js";
import { points, readLines, valueAt } from "../lines_model.js";
import { scalerName } from "../loss_scale_words.js";
import { optionalLane } from "./optional_lanes.js";

/** @typedef {import("../types.js").FigureAnswer} FigureAnswer */
/** @typedef {import("../lines_model.js").LinesModel} LinesModel */
/** @typedef {import("./lane.js").View} View */
/** @typedef {{title: (name: string) => string, height: number, draw: import("./lane_specs.js").LaneSpec["draw"], text: (value: number) => string}} SeriesLook */

/** More would bury the layers; all of them are in the exports. */
export const MOST_LOGGED = 6;
const MOST_SCALERS = 7;
const MOST_LETTERS = 80;

/** What the agent records itself, and what has a lane of its own. */
const OWN = new Set([
  "loss", "found_inf", "skipped_step", "step_time_s", "wall_time_s", "agent_time_s", "agent_device_time_s", "weights_finite",
  "data_wait_s", "forward_s", "backward_s", "exposed_comm_s", "optimizer_s", "other_s",
]);

/** @param {string} name */
const isScale = (name) => /^loss_scale(\/\d+)?$/.test(name);

/** The names of what the program logs. Pure. @param {readonly string[]} series */
export const loggedOf = (series) => series.filter((name) => !OWN.has(name) && !isScale(name));

/** What is logged and not drawn. Pure. @param {readonly string[]} series */
export function leftOutText(series) {
  const rest = loggedOf(series).slice(MOST_LOGGED);
  return rest.length ? `${plural(rest.length, "more series is", "more series are")} logged: ${clip(rest.map((name) => clip(name, MOST_LETTERS)).join(", "), 400)}.` : "";
}

/** Those of the second scaler and the next. Pure. @param {readonly string[]} series */
export const furtherScales = (series) => series.filter((name) => isScale(name) && name !== "loss_scale").sort((a, b) => a.localeCompare(b, "en", { numeric: true }));

/** @type {SeriesLook} */
const PLAIN = { title: (name) => clip(name, MOST_LETTERS), height: 48, draw: plainLines({ colours: ["accent"], unit: "" }), text: reading };
/** @type {SeriesLook} */
const STAIRS = { title: (name) => `Loss scale, ${scalerName(name)}`, height: 84, draw: (model, frame, palette) => scaleLines(model, frame, palette), text: scale };

/** @type {FigureAnswer} */
const NOTHING = { figure: { data: [], layout: {} }, meta: { start: 0, stop: 0, steps_per_column: 1, note: "" } };

export const createLoggedLanes = () => Array.from({ length: MOST_LOGGED }, (_, slot) => seriesLane(`logged-${slot}`, slot, loggedOf, PLAIN));

export const createScaleLanes = () => Array.from({ length: MOST_SCALERS }, (_, slot) => seriesLane(`loss-scale-${slot + 2}`, slot, furtherScales, STAIRS));

/** The lane of a run's so-manieth series of a sort; which one that is may change while the run goes on. @param {string} name @param {number} slot @param {(series: readonly string[]) => string[]} namesOf @param {SeriesLook} look */
function seriesLane(name, slot, namesOf, look) {
  const seriesOf = (/** @type {View} */ { run }) => namesOf(run.series).at(slot);
  const spec = {
    name,
    title: "",
    empty: "Nothing was recorded in these steps.",
    plotHeight: () => look.height,
    read: readLines,
    isEmpty: (/** @type {LinesModel} */ { series, markSteps }) => !series.some((one) => points(one).length) && !markSteps.length,
    draw: look.draw,
    readout: (/** @type {LinesModel} */ { series, meta }, /** @type {number} */ step) => {
      const value = valueAt(series[0], step, Math.max(1, meta.steps_per_column));
      return value === null ? "not measured" : look.text(value);
    },
  };
  /** @param {View} view @param {number} columns @param {AbortSignal} signal */
  function load(view, columns, signal) {
    const series = seriesOf(view);
    spec.title = series === undefined ? "" : look.title(series);
    return series === undefined ? Promise.resolve(NOTHING) : api.figure(String(view.run.id), "series", { q: series, ...view.range, columns, rows: 1 }, signal);
  }
  return optionalLane(spec, { load }, (/** @type {LinesModel} */ { series }) => series.length > 0);
}
