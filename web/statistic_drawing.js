// A heatmap of any statistic: headroom and floor room on the headroom scale, all else on one of its own.

import { heatmapDrawing } from "./figure_drawing.js";
import { sequentialColours } from "./sequential_colours.js";

/** @typedef {import("./figure_drawing.js").Drawing} Drawing */

/**
 * @param {import("./heatmap_model.js").HeatmapModel} model @param {import("./figure_frame.js").Frame} frame
 * @param {import("./theme.js").Palette} palette @param {string} picture data URL of the painted states
 * @returns {Drawing}
 */
export function statisticDrawing(model, frame, palette, picture) {
  const drawing = heatmapDrawing(model, frame, palette, picture);
  const { statistic } = model;
  if (!statistic || statistic.scale === "bits") return drawing;
  const [heat, ...others] = drawing.traces;
  const colours = sequentialColours();
  const colorscale = colours.map((colour, i) => [i / (colours.length - 1), colour]);
  return { ...drawing, traces: [{ ...heat, zmin: statistic.low, zmax: statistic.high, colorscale }, ...others] };
}
