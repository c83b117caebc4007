// Where a click on a chart leads: timeline to layers to step, and with Shift or a row's name to that layer's panel.

import { locate } from "../../api/client.js";
import { ApiError } from "../../api/fetch.js";
import { onward, runPath } from "../../api/url_state.js";
import { closedWithout, columnAt, columnSteps } from "../heatmap.js";
import { mergedSteps } from "../lines.js";
import { HEADROOM } from "../statistics.js";

/** @typedef {import("./lane.js").Lane} Lane */
/** @typedef {import("../../api/client.js").Query} Query */
/** @typedef {import("./lane_pointer.js").Spot} Spot */
/** @typedef {import("../heatmap.js").HeatmapRow} HeatmapRow */
/** @typedef {import("../../types.js").StepRange} StepRange */

/** Steps shown to each side of a clicked timeline cell, and columns likewise when a column is many steps. */
const AROUND_STEPS = 50;
const AROUND_COLUMNS = 16;

/** @param {import("../../types.js").PageContext} ctx */
export function createNavigator(ctx) {
  const run = ctx.params.id;

  /** The exact worst place of a rectangle, then its Step page. @param {StepRange} range @param {Query} asked what the figure was asked for @param {Query | null} tensors */
  async function openStep(range, asked, tensors) {
    if (tensors === null) return ctx.notify("This row is too many layers that are not neighbours: narrow them by a name filter.");
    if (isMeasuredOtherwise(asked.statistic) && range.stop - range.start > 1) return ctx.setState(range);
    try {
      const { rank = "all", kind, q } = asked;
      const place = await locate(run, { ...range, rank, ...tensors, kind, q });
      ctx.navigate(runPath(run, "step", onward(ctx.state, { step: place.step, rank: place.rank, tensor: place.tensor })));
    } catch (error) {
      const nothing = error instanceof ApiError && error.code === "nothing_there";
      ctx.notify(nothing ? "Nothing was observed here." : String(error instanceof Error ? error.message : error));
    }
    return undefined;
  }

  /** @param {Lane} lane @param {Spot} spot */
  function pick(lane, spot) {
    const row = spot.row === null ? null : lane.rows()[spot.row];
    if (lane.spec.name === "timeline" && row) pickRank(lane, row, spot);
    else if (lane.spec.name === "layers" && row) pickTensorRow(lane, row, spot);
    else pickPoint(lane, spot.step);
  }

  /** @param {Lane} lane of lines @param {number} step */
  function pickPoint(lane, step) {
    const asked = askedOf(lane);
    openStep(mergedSteps(lane.model, step), asked, { tensor: asked.tensor });
  }

  /** @param {Lane} lane @param {HeatmapRow} row @param {Spot} spot */
  function pickRank(lane, row, spot) {
    const asked = askedOf(lane);
    const at = stepsAt(lane.model, spot.step);
    const rank = row.rank ?? "all";
    if (spot.shift) openStep(at, { ...asked, rank }, {});
    else if (isOfLayers(asked)) openStep(at, { ...asked, rank }, { tensor: asked.tensor });
    else ctx.navigate(runPath(run, "layers", { rank, ...around(at, lane.model.dx, lane.view?.run.last_step ?? null) }));
  }

  /** @param {Lane} lane @param {HeatmapRow} row @param {Spot} spot */
  function pickTensorRow(lane, row, spot) {
    const asked = askedOf(lane);
    if (spot.shift) openTensor(row, asked, lane.model);
    else openStep(stepsAt(lane.model, spot.step), asked, tensorsOf(row));
  }

  /** Beside the layers, on their page; a closed module is opened. @param {HeatmapRow} row @param {Query} asked @param {any} model @param {"" | "tensor,rank"} [axes] */
  function openTensor(row, asked, model, axes = "") {
    if (row.module !== undefined) return ctx.setState({ closed: closedWithout(ctx.state.closed, model, row.module) });
    const tensor = row.tensor ?? row.listed?.[0] ?? row.tensors?.[0] ?? null;
    return ctx.navigate(runPath(run, "layers", { ...shownState(ctx.state, asked), axes, tensor }));
  }

  return {
    pick,
    pickPoint,
    /** A cell of layers by ranks. @param {Lane} lane @param {{row: number, column: number}} cell @param {StepRange} range @param {boolean} shift */
    pickRankAndLayer(lane, cell, range, shift) {
      /** @type {import("./lane_specs.js").RanksModel} */
      const model = lane.model;
      const layer = model.tensors[cell.column];
      if (shift) openTensor(layer, askedOf(lane), model, "tensor,rank");
      else openStep(range, { ...askedOf(lane), rank: model.rows[cell.row].rank ?? "all" }, tensorsOf(layer));
    },
    /** @param {Lane} lane @param {number} row */
    pickLabel(lane, row) {
      const item = lane.rows()[row];
      const asked = askedOf(lane);
      if (lane.spec.name === "layers") openTensor(item, asked, lane.model);
      else if ("rank" in item) ctx.navigate(runPath(run, "layers", { ...shownState(ctx.state, asked), rank: item.rank ?? "all" }));
    },
    /** @param {Lane} lane @param {import("../heatmap.js").Cell} cell */
    pickCell(lane, cell) {
      const asked = askedOf(lane);
      const row = lane.model.rows[cell.row];
      const steps = columnSteps(lane.model, cell.column);
      if ("rank" in row) openStep(steps, { ...asked, rank: row.rank ?? "all" }, { tensor: asked.tensor });
      else openStep(steps, asked, tensorsOf(row));
    },
  };
}

/** What a lane's figure was asked for: the address may hold choices that were made on another page, and are not seen here. @param {Lane} lane @returns {Query} */
const askedOf = ({ options, view }) => (view && options.query?.(view)) ?? {};

/** Whether it is the main figure of the page Layers, where a rank by itself leads nowhere further. @param {Query} asked */
const isOfLayers = (asked) => "tensor" in asked;

/**
 * The view without choices that the figure was not asked for: what it leads to is of what was seen. Pure.
 * @param {import("../../types.js").ViewState} state @param {Query} asked @returns {import("../../types.js").ViewState}
 */
export function shownState(state, { rank = "all", kind, q, statistic }) {
  const isSame = rank === (state.rank ?? "all");
  return {
    ...state,
    from: null,
    to: null,
    axes: "",
    rank: isSame ? state.rank : /** @type {number | "all"} */ (rank),
    kinds: kind === undefined ? [] : state.kinds,
    q: q === undefined ? "" : state.q,
    statistic: statistic === undefined ? "" : state.statistic,
  };
}

/** What a place is looked for by is headroom: of other statistics it is the one step that is opened. @param {Query[string]} statistic */
const isMeasuredOtherwise = (statistic = "") => !["", HEADROOM, "amax"].includes(String(statistic));

/** The tensors of a row as `locate` is asked for them; null of those that cannot be named. @param {HeatmapRow} row @returns {Query | null} */
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

/** No further than the run goes. @param {StepRange} at @param {number} stride @param {number | null} last step of the run @returns {StepRange} */
export function around({ start, stop }, stride, last) {
  const room = Math.max(AROUND_STEPS, Math.ceil(stride * AROUND_COLUMNS));
  return { start: Math.max(0, start - room), stop: Math.min(stop + room, last === null ? Infinity : last + 1) };
}
