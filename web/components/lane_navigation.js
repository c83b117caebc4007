// Where a click on a figure leads: timeline -> layers -> step, with Shift or a row's name -> tensor.

import { ApiError, locate } from "../api.js";
import { columnAt, columnSteps } from "../heatmap_model.js";
import { mergedSteps } from "../lines_model.js";
import { runPath } from "../url_state.js";

/** @typedef {import("./lane.js").Lane} Lane */
/** @typedef {import("./lane_pointer.js").Spot} Spot */
/** @typedef {import("../types.js").HeatmapRow} HeatmapRow */
/** @typedef {import("../types.js").StepRange} StepRange */

/** Steps shown to each side of a clicked timeline cell, and columns likewise when a column is many steps. */
const AROUND_STEPS = 50;
const AROUND_COLUMNS = 16;

/** @param {import("../types.js").PageContext} ctx */
export function createNavigator(ctx) {
  const run = ctx.params.id;

  /** The exact worst place of a rectangle, then its Step page. @param {StepRange} range @param {number | "all"} rank @param {string | number | null} tensor */
  async function openStep(range, rank, tensor) {
    try {
      const place = await locate(run, { ...range, rank, tensor, kind: ctx.state.kinds, q: ctx.state.q });
      ctx.navigate(runPath(run, "step", { step: place.step, rank: place.rank, tensor: place.tensor }));
    } catch (error) {
      const nothing = error instanceof ApiError && error.code === "nothing_there";
      ctx.say(nothing ? "Nothing was observed here." : String(error instanceof Error ? error.message : error));
    }
  }

  /** @param {Lane} lane @param {Spot} spot */
  function pick(lane, spot) {
    const { model } = lane;
    const row = spot.row === null ? null : lane.rows()[spot.row];
    if (lane.spec.name === "timeline" && row) pickRank(model, row, spot);
    else if (lane.spec.name === "layers" && row) pickTensorRow(model, row, spot);
    else pickPoint(model, spot.step, ["tensor", "exponents"].includes(lane.spec.name) ? ctx.state.tensor : null);
  }

  /** @param {import("../lines_model.js").LinesModel} model @param {number} step @param {number | null} tensor */
  function pickPoint(model, step, tensor) {
    openStep(mergedSteps(model, step), ctx.state.rank ?? "all", tensor);
  }

  /** @param {any} model @param {HeatmapRow} row @param {Spot} spot */
  function pickRank(model, row, spot) {
    const at = stepsAt(model, spot.step);
    const rank = row.rank ?? "all";
    if (spot.shift) openStep(at, rank, null);
    else ctx.navigate(runPath(run, "layers", { rank, ...around(at, model.dx) }));
  }

  /** @param {any} model @param {HeatmapRow} row @param {Spot} spot */
  function pickTensorRow(model, row, spot) {
    if (spot.shift) openTensor(row);
    else openStep(stepsAt(model, spot.step), ctx.state.rank ?? "all", tensorsOf(row));
  }

  /** @param {HeatmapRow} row */
  function openTensor(row) {
    const { rank, start, stop } = ctx.state;
    const tensor = row.tensor ?? row.tensors?.[0] ?? null;
    ctx.navigate(runPath(run, "tensor", { rank, start, stop, tensor }));
  }

  return {
    pick,
    pickPoint,
    /** @param {Lane} lane @param {number} row */
    pickLabel(lane, row) {
      const found = lane.rows()[row];
      if (lane.spec.name === "layers") openTensor(found);
      else if ("rank" in found) ctx.navigate(runPath(run, "layers", { ...ctx.state, rank: found.rank ?? "all" }));
    },
    /** @param {any} model @param {import("../heatmap_model.js").Cell} cell */
    pickCell(model, cell) {
      openStep(columnSteps(model, cell.column), ctx.state.rank ?? "all", tensorsOf(model.rows[cell.row]));
    },
  };
}

/** @param {HeatmapRow} row */
function tensorsOf(row) {
  return row.tensor ?? (row.tensors ? row.tensors.join("-") : null);
}

/** @param {any} model @param {number} step @returns {StepRange} */
function stepsAt(model, step) {
  const column = columnAt(model, step);
  return column === null ? { start: step, stop: step + 1 } : columnSteps(model, column);
}

/** @param {StepRange} at @param {number} stride @returns {StepRange} */
function around({ start, stop }, stride) {
  const room = Math.max(AROUND_STEPS, Math.ceil(stride * AROUND_COLUMNS));
  return { start: Math.max(0, start - room), stop: stop + room };
}
