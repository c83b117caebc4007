// The heatmap's twin in words: the rows with the least headroom, each with a way to its step and tensor.

import { el, link, replace } from "../dom.js";
import { clip, rankName, steps } from "../format.js";
import { heatOf, isNonfinite } from "../headroom.js";
import { cellText, columnSteps, rowName, worstRows } from "../heatmap_model.js";
import { runPath } from "../url_state.js";

/** @typedef {import("../heatmap_model.js").HeatmapModel} HeatmapModel */
/** @typedef {import("../heatmap_model.js").Cell} Cell */

const MOST_ROWS = 20;

/** @param {import("../types.js").PageContext} ctx @param {(model: HeatmapModel, cell: Cell) => void} open */
export function createWorstTable(ctx, open) {
  const body = el("tbody");
  const head = el("tr", {}, ...["Layer", "Least headroom", "Where", ""].map((name) => el("th", { scope: "col" }, name)));
  const caption = el("caption", {});
  const element = el("div", { class: "panel table-scroll" }, el("table", { class: "dense worst-table" }, caption, el("thead", {}, head), body));

  /** @param {HeatmapModel} model @param {Cell} cell */
  function line(model, cell) {
    const row = model.rows[cell.row];
    const { rank, start, stop } = ctx.state;
    const tensor = row.tensor ?? row.tensors?.[0] ?? null;
    const name = link(runPath(ctx.params.id, "tensor", { rank, start, stop, tensor }), { class: "name", title: rowName(row) }, clip(rowName(row)));
    const button = el("button", { type: "button", class: "quiet", click: () => open(model, cell) }, "Open the step");
    return el(
      "tr",
      {},
      el("td", {}, name),
      el("td", { class: "number", "data-heat": heatOfCell(cell) }, cellText(cell)),
      el("td", { class: "number" }, steps(columnSteps(model, cell.column))),
      el("td", {}, button),
    );
  }

  return {
    element,
    /** @param {HeatmapModel} model */
    update(model) {
      caption.textContent = `First to hold a NaN or Inf, then least headroom; ${rankName(ctx.state.rank)}`;
      replace(body, ...worstRows(model, MOST_ROWS).map((cell) => line(model, cell)));
    },
  };
}

/** @param {Cell} cell */
function heatOfCell(cell) {
  if (isNonfinite(cell.state)) return "bad";
  return Number.isFinite(cell.bits) ? heatOf(cell.bits) : null;
}
