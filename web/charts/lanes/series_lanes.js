// Lanes that not every run has: series that the program logs, and the scales of further loss scalers.

import * as api from "../../api/client.js";
import { el } from "../../format/dom.js";
import { clip, plural, reading, scale } from "../../format/numbers.js";
import { noLines, plainLines, points, readLines, scaleLines, valueAt } from "../lines.js";

/** @typedef {import("../lines.js").LinesModel} LinesModel */
/** @typedef {import("./lane.js").View} View */
/** @typedef {{title: (name: string) => string, height: number, draw: import("./lane_specs.js").LaneSpec["draw"], text: (value: number) => string}} SeriesStyle */

/** More would bury the layers; all of them are in the exports. */
const MOST_LOGGED = 6;
const MOST_SCALERS = 7;
const MOST_LETTERS = 80;
const MOST_NAME = 120;

/** What the agent records itself, and what has a lane of its own. */
const OWN = new Set([
  "loss", "found_inf", "skipped_step", "step_time_s", "wall_time_s", "agent_time_s", "agent_device_time_s", "weights_finite", "weights_written", "sampled_gradient", "sampled_update", "target_share", "target_class", "target_rms", "target_count", "clipped_norm", "input_elements", "input_rms", "input_rms_1", "input_rms_2", "update_fraction", "decay_fraction", "alike_rows", "mask_share", "added_mask_share", "attention_share",
  "optimizer_steps", "token_checksum", "input_checksum", "rows_checksum", "generator_checksum", "tied_checksum",
  "dropout_input_checksum", "dropout_output_checksum", "grad_sum_sq", "grad_local_sum_sq", "grad_zero_count",
  "memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes", "process_resident_bytes", "process_resident_peak_bytes",
  "data_wait_s", "forward_s", "backward_s", "exposed_comm_s", "optimizer_s", "other_s",
]);

/** @param {string} name */
const isGroupRate = (name) => /^lr_group_\d+$/.test(name);

/** @param {string} name */
const isScale = (name) => /^loss_scale(\/\d+)?$/.test(name);

/** The names of what the program logs. Pure. @param {readonly string[]} series */
export const loggedOf = (series) => series.filter((name) => !OWN.has(name) && !isGroupRate(name) && !isScale(name));

/** What is logged and not drawn. Pure. @param {readonly string[]} series */
export function leftOutText(series) {
  const rest = loggedOf(series).slice(MOST_LOGGED);
  return rest.length ? `${plural(rest.length, "more series is", "more series are")} logged: ${clip(rest.map((name) => clip(name, MOST_LETTERS)).join(", "), 400)}.` : "";
}

/** Those of the second scaler and the next. Pure. @param {readonly string[]} series */
export const furtherScales = (series) => series.filter((name) => isScale(name) && name !== "loss_scale").sort((a, b) => a.localeCompare(b, "en", { numeric: true }));

/** "scaler 2" of "loss_scale/1". @param {string} series */
export function scalerName(series) {
  const number = /^loss_scale(?:\/(\d+))?$/.exec(series);
  return number ? `scaler ${Number(number[1] ?? 0) + 1}` : clip(series, MOST_NAME);
}

/** @type {SeriesStyle} */
const PLAIN = { title: (name) => clip(name, MOST_LETTERS), height: 48, draw: plainLines({ colours: ["accent"], unit: "" }), text: reading };
/** @type {SeriesStyle} */
const STAIRS = { title: (name) => `Loss scale, ${scalerName(name)}`, height: 84, draw: (model, frame, palette) => scaleLines(model, frame, palette), text: scale };

export const createLoggedLanes = () => Array.from({ length: MOST_LOGGED }, (_, slot) => seriesLane(`logged-${slot}`, slot, loggedOf, PLAIN));

export const createScaleLanes = () => Array.from({ length: MOST_SCALERS }, (_, slot) => seriesLane(`loss-scale-${slot + 2}`, slot, furtherScales, STAIRS));

/** The lane of a run's n-th series of a sort; which one that is may change while the run goes on. @param {string} name @param {number} slot @param {(series: readonly string[]) => string[]} namesOf @param {SeriesStyle} style */
function seriesLane(name, slot, namesOf, style) {
  const seriesOf = (/** @type {View} */ { run }) => namesOf(run.series).at(slot);
  const spec = {
    name,
    title: "",
    empty: "Nothing was recorded in these steps.",
    plotHeight: () => style.height,
    isEmpty: (/** @type {LinesModel} */ { series, markSteps }) => !series.some((one) => points(one).length) && !markSteps.length,
    draw: style.draw,
    hasStyles: style === PLAIN,
    readout: (/** @type {LinesModel} */ { series, meta }, /** @type {number} */ step) => {
      const value = valueAt(series[0], step, Math.max(1, meta.steps_per_column));
      return value === null ? "not measured" : style.text(value);
    },
  };
  /** @param {View} view @param {number} columns @param {AbortSignal} signal */
  function load(view, columns, signal) {
    const series = seriesOf(view);
    spec.title = series === undefined ? "" : style.title(series);
    return series === undefined ? Promise.resolve(noLines()) : api.figure(String(view.run.id), "series", { q: series, ...view.range, columns, rows: 1 }, signal).then(readLines);
  }
  return optionalLane(spec, { load }, (/** @type {LinesModel} */ { series }) => series.length > 0);
}

// Lanes for what not every run has: without anything to show they take no room, but keep their width.

/** @typedef {import("./lane_specs.js").LaneSpec} LaneSpec */
/** @typedef {import("./lane_group.js").LaneEntry} LaneEntry */
/** @typedef {import("./lane.js").Lane} Lane */

/** Not display: none, as a lane asks for as many columns as it is wide. */
const ABSENT = "is-absent";

/**
 * A lane that is there while its figure has something; with `isNeeded` it is there though it has not.
 * @param {LaneSpec} spec @param {import("./lane.js").LaneOptions} [options] @param {(model: any) => boolean} [isNeeded]
 */
export function optionalLane(spec, options = {}, isNeeded = () => false) {
  /** @type {Lane | null} */
  let lane = null;
  const show = (/** @type {boolean} */ isThere) => void lane?.element.classList.toggle(ABSENT, !isThere);
  /** @type {LaneEntry} */
  const entry = {
    spec,
    options: {
      ...options,
      onModel(model) {
        options.onModel?.(model);
        show(!spec.isEmpty(model) || isNeeded(model));
      },
    },
  };
  return {
    entry,
    /** Once the group has made it. @param {Lane} made @param {...import("../../format/dom.js").Child} below */
    attach(made, ...below) {
      lane = made;
      made.element.append(...below.filter((child) => child instanceof Node));
      show(false);
    },
  };
}

/** A note at the foot of a lane. @param {string} testid */
export const laneNote = (testid) => el("p", { class: "lane-message", "data-testid": testid, hidden: true });
