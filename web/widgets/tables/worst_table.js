// The table of a heatmap's rows with the worst values, each with links to its step and tensor.

import { runPath } from "../../api/url_state.js";
import { heatOf, isNonfinite, worstTitle } from "../../charts/statistics.js";
import { cellText, closedWithout, placeText, rowName, worstRows } from "../../charts/heatmap.js";
import { shownState } from "../../charts/lanes/lane_navigation.js";
import { el, link, replace } from "../../format/dom.js";
import { clip, rankName } from "../../format/numbers.js";

/** @typedef {import("../../charts/heatmap.js").HeatmapModel} HeatmapModel */
/** @typedef {import("../../charts/heatmap.js").Cell} Cell */

/** The server is asked for the exact steps of so many. */
export const MOST_ROWS = 20;

/**
 * @param {import("../../types.js").PageContext} ctx @param {(model: HeatmapModel, cell: Cell) => void} open
 * @param {(view: {state: import("../../types.js").ViewState}) => import("../../api/client.js").Query} query what the heatmap was asked for
 */
export function createWorstTable(ctx, open, query) {
  const body = el("tbody");
  const what = el("th", { scope: "col" }, "Layer");
  const which = el("th", { scope: "col" }, "Least headroom");
  const head = el("tr", {}, what, which, ...["Where", ""].map((name) => el("th", { scope: "col" }, name)));
  const caption = el("caption", {});
  const element = el("div", { class: "panel table-scroll" }, el("table", { class: "dense worst-table" }, caption, el("thead", {}, head), body));

  /** @param {HeatmapModel} model @param {Cell} cell */
  function line(model, cell) {
    const row = model.rows[cell.row];
    const name = link(runPath(ctx.params.id, "layers", leadsTo(model, row)), { class: "name", title: rowName(row) }, clip(rowName(row)));
    const button = el("button", { type: "button", class: "quiet", click: () => open(model, cell) }, "Open the step");
    return el(
      "tr",
      {},
      el("td", {}, name),
      el("td", { class: "number", "data-heat": heatOfCell(cell) }, cellText(cell)),
      el("td", { class: "number" }, clip(placeText(model, cell))),
      el("td", {}, button),
    );
  }

  /** A rank's layers, a closed module opened, or a layer's panel. @param {HeatmapModel} model @param {import("../../charts/heatmap.js").HeatmapRow} row */
  function leadsTo(model, row) {
    const state = shownState(ctx.state, query(ctx));
    if (row.rank !== undefined) return { ...state, rank: row.rank ?? /** @type {const} */ ("all") };
    if (row.module !== undefined) return { ...state, closed: closedWithout(state.closed, model, row.module) };
    return { ...state, tensor: row.tensor ?? row.listed?.[0] ?? row.tensors?.[0] ?? null };
  }

  return {
    element,
    /** @param {HeatmapModel} model */
    update(model) {
      const isByRank = model.rows.some((row) => "rank" in row);
      const worst = worstTitle(model.statistic);
      what.textContent = isByRank ? "Rank" : "Layer";
      which.textContent = worst[0].toUpperCase() + worst.slice(1);
      caption.textContent = `First to hold a NaN or Inf, then ${worst}${isByRank ? "" : `; ${rankName(shownState(ctx.state, query(ctx)).rank)}`}`;
      element.hidden = model.rows.length === 0;
      replace(body, ...worstRows(model, MOST_ROWS).map((cell) => line(model, cell)));
    },
  };
}

/** @param {Cell} cell */
function heatOfCell(cell) {
  if (isNonfinite(cell.state)) return "bad";
  return Number.isFinite(cell.bits) && (cell.statistic?.scale ?? "bits") === "bits" ? heatOf(cell.bits) : null;
}
