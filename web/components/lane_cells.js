// The cells of a heatmap, under what Plotly draws of it.

import { el } from "../dom.js";
import { cellsBox } from "../heat_cells.js";
import { paintHeat } from "../state_canvas.js";

/** @typedef {import("../heat_cells.js").HeatCells} HeatCells */

export function createLaneCells() {
  const element = /** @type {HTMLCanvasElement} */ (el("canvas", { class: "lane-cells", "aria-hidden": "true", hidden: true }));
  return {
    element,
    /** @param {HeatCells} cells @param {import("../figure_frame.js").Frame} frame @param {import("../theme.js").Palette} palette */
    draw(cells, frame, palette) {
      element.hidden = false;
      const { margin, band, plotWidth, plotHeight } = frame;
      Object.assign(element.style, { left: `${margin.l}px`, top: `${margin.t + band}px`, width: `${plotWidth}px`, height: `${plotHeight}px` });
      paintHeat(element, cells, cellsBox(cells, frame), plotWidth, palette);
    },
    clear() {
      element.hidden = true;
      element.width = element.height = 0;
    },
  };
}
