// The tensor figure's twin in words: its first non-finite and its largest steps, each with a way to the frames.

import { el } from "../dom.js";
import { bits, count, magnitude, steps } from "../format.js";
import { heatOf } from "../headroom.js";
import { keepRows } from "../keep_rows.js";
import { mergedSteps } from "../lines_model.js";
import { extremes } from "../tensor_extremes.js";

/** @typedef {import("../lines_model.js").LinesModel} LinesModel */
/** @typedef {import("../tensor_extremes.js").Extreme} Extreme */

const COLUMNS = ["Step", "abs max", "abs min", "Headroom", ""];
const MOST_ROWS = 12;

/** @param {(step: number) => void} open */
export function createTensorTable(open) {
  const body = el("tbody");
  const head = el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col", class: "number" }, name)));
  const caption = el("caption", {}, "First to hold a NaN or Inf, then largest");
  const element = el("div", { class: "panel table-scroll" }, el("table", { class: "dense tensor-table", "data-testid": "tensor-table" }, caption, el("thead", {}, head), body));

  /** Its button opens the step alone, so that a row that stays does what is shown now. @param {LinesModel} model @param {Extreme} found */
  function line(model, found) {
    const button = el("button", { type: "button", class: "quiet", click: () => open(found.step) }, "Open the step");
    const at = mergedSteps(model, found.step);
    const cells = [at.stop - at.start === 1 ? count(at.start) : steps(at), magnitude(found.amax), magnitude(found.amin)];
    return el("tr", { "data-key": found.step }, ...cells.map((text) => el("td", { class: "number" }, text)), headroomCell(found), el("td", {}, button));
  }

  return {
    element,
    /** @param {LinesModel} model */
    update(model) {
      const found = extremes(model, MOST_ROWS);
      element.hidden = found.length === 0;
      keepRows(body, found.map((one) => line(model, one)));
    },
  };
}

/** @param {Extreme} found */
function headroomCell({ nonfinite, headroom }) {
  if (nonfinite) return el("td", { class: "number", "data-heat": "bad" }, "not finite");
  return el("td", { class: "number", "data-heat": heatOf(headroom) }, bits(headroom));
}
