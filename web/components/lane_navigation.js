// Where a click on a figure leads: timeline -> layers -> step, with Shift or a row's name -> that layer's panel.

import { ApiError, locate } from "../api.js";
import { columnAt, columnSteps } from "../heatmap_model.js";
import { mergedSteps } from "../lines_model.js";
import { HEADROOM } from "../statistics.js";
import { runPath } from "../url_state.js";

/** @typedef {import("./lane.js").Lane} Lane */
/** @typedef {import("./lane_pointer.js").Spot} Spot */
/** @typedef {import("../heatmap_model.js").HeatmapRow} HeatmapRow */
/** @typedef {import("../types.js").StepRange} StepRange */

/** Steps shown to each side of a clicked timeline cell, and columns likewise when a column is many steps. */
const AROUND_STEPS = 50;
const AROUND_COLUMNS = 16;

/** @param {import("../types.js").PageContext} ctx */
export function createNavigator(ctx) {
  const run = ctx.params.id;

  /** The exact worst place of a rectangle, then its Step page. @param {StepRange} range @param {number | "all"} rank @param {import("../api.js").Query | null} tensors */
  async function openStep(range, rank, tensors) {
    if (tensors === null) return ctx.say("This row stands for too many layers that do not follow each other: a name filter opens it up.");
    if (isMeasuredOtherwise(ctx.state.statistic) && range.stop - range.start > 1) return ctx.setState(range);
    try {
      const place = await locate(run, { ...range, rank, ...tensors, kind: ctx.state.kinds, q: ctx.state.q });
      ctx.navigate(runPath(run, "step", { step: place.step, rank: place.rank, tensor: place.tensor }));
    } catch (error) {
      const nothing = error instanceof ApiError && error.code === "nothing_there";
      ctx.say(nothing ? "Nothing was observed here." : String(error instanceof Error ? error.message : error));
    }
    return undefined;
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
    openStep(mergedSteps(model, step), ctx.state.rank ?? "all", { tensor });
  }

  /** @param {any} model @param {HeatmapRow} row @param {Spot} spot */
  function pickRank(model, row, spot) {
    const at = stepsAt(model, spot.step);
    const rank = row.rank ?? "all";
    if (spot.shift) openStep(at, rank, {});
    else if (ctx.state.axes) openStep(at, rank, { tensor: ctx.state.tensor });
    else ctx.navigate(runPath(run, "layers", { rank, ...around(at, model.dx) }));
  }

  /** @param {any} model @param {HeatmapRow} row @param {Spot} spot */
  function pickTensorRow(model, row, spot) {
    if (spot.shift) openTensor(row);
    else openStep(stepsAt(model, spot.step), ctx.state.rank ?? "all", tensorsOf(row));
  }

  /** Beside the layers, on their page; a closed module is opened. @param {HeatmapRow} row */
  function openTensor(row) {
    const { closed } = ctx.state;
    if (row.module !== undefined) return ctx.setState({ closed: closed.filter((path) => path !== row.module) });
    const tensor = row.tensor ?? row.listed?.[0] ?? row.tensors?.[0] ?? null;
    return ctx.navigate(runPath(run, "layers", { ...ctx.state, tensor }));
  }

  return {
    pick,
    pickPoint,
    /** A cell of layers by ranks. @param {import("./lane_specs.js").RanksModel} model @param {{row: number, column: number}} cell @param {StepRange} range @param {boolean} shift */
    pickRankAndLayer(model, cell, range, shift) {
      const layer = model.tensors[cell.column];
      if (shift) openTensor(layer);
      else openStep(range, model.rows[cell.row].rank ?? "all", tensorsOf(layer));
    },
    /** @param {Lane} lane @param {number} row */
    pickLabel(lane, row) {
      const found = lane.rows()[row];
      if (lane.spec.name === "layers") openTensor(found);
      else if ("rank" in found) ctx.navigate(runPath(run, "layers", { ...ctx.state, axes: "", rank: found.rank ?? "all" }));
    },
    /** @param {any} model @param {import("../heatmap_model.js").Cell} cell */
    pickCell(model, cell) {
      const row = model.rows[cell.row];
      const isRank = "rank" in row;
      openStep(columnSteps(model, cell.column), isRank ? (row.rank ?? "all") : (ctx.state.rank ?? "all"), isRank ? { tensor: ctx.state.tensor } : tensorsOf(row));
    },
  };
}

/** What a place is looked for by is headroom: of other statistics it is the one step that is opened. @param {string} statistic */
const isMeasuredOtherwise = (statistic) => !["", HEADROOM, "amax"].includes(statistic);

/** The tensors of a row as `locate` is asked for them; null of those that cannot be named. @param {HeatmapRow} row @returns {import("../api.js").Query | null} */
export function tensorsOf({ tensor, tensors, module, listed }) {
  if (module !== undefined) return { module };
  if (listed) return listed.length ? { tensor: listed.join(",") } : null;
  return { tensor: tensor ?? (tensors ? tensors.join("-") : null) };
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
