// Turns decoded figures into Plotly traces and layouts in the page's theme. Pure; no text of the server goes in
// unescaped.

import { shorten } from "../format/numbers.js";
import { axisRange, labelledRows, labels, pixelOf, stepTicks, thinned, withRow } from "./frame.js";
import { worstRow } from "./heatmap.js";

/** @typedef {import("./frame.js").Frame} Frame */
/** @typedef {import("./theme.js").Palette} Palette */
/** @typedef {{traces: object[], layout: object}} Drawing */

/** Pixels between the base lines of two row labels. */
const LABEL_SPACING = 13;
/** Pixels between two marks in the band. */
const MARK_GAP = 5;
/** Average width of a letter of a row label, in pixels. */
const LETTER = 6;
/** Margins with less room than this are a phone's. */
const FEW_LETTERS = 20;

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

/** Set, because Plotly would search for dates among the values and measure the labels for an angle: 20 of 140 ms of drawing. */
const PLAIN = { type: "linear", tickangle: 0 };

/**
 * The layout every lane shares; `yaxis` is the lane's own.
 * @param {Frame} frame @param {Palette} palette @param {object} yaxis @param {object} [more]
 */
export function layoutOf(frame, palette, yaxis, more = {}) {
  const top = 1 - frame.band / (frame.plotHeight + frame.band);
  return {
    width: frame.width,
    height: frame.height,
    margin: { ...frame.margin, pad: 0 },
    autosize: false,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: FONT, size: 11, color: palette.muted },
    showlegend: false,
    hovermode: false,
    xaxis: stepAxis(frame, palette),
    yaxis: { ...PLAIN, domain: [0, top], ticklabeloverflow: "allow", zeroline: false, gridcolor: palette.line, ...yaxis },
    yaxis2: { ...PLAIN, domain: [top, 1], range: [0, 1], visible: false },
    ...more,
  };
}

/** @param {Frame} frame @param {Palette} palette */
function stepAxis(frame, palette) {
  return {
    ...PLAIN,
    range: axisRange(frame.range),
    ...labels(stepTicks(frame), frame),
    showticklabels: !frame.isBare,
    gridcolor: palette.line,
    zeroline: false,
    ticks: "outside",
    ticklen: 4, // keeps the labels clear of the y axis' lowest one
    tickcolor: "rgba(0,0,0,0)",
    anchor: "y",
  };
}

/** Triangles above the plot. @param {number[]} steps @param {Frame} frame @param {Palette} palette */
export function markTrace(steps, frame, palette) {
  const stepsAPixel = 1 / (pixelOf(1, frame) - pixelOf(0, frame));
  const x = thinned(steps, MARK_GAP * stepsAPixel);
  return {
    type: "scatter",
    mode: "markers",
    x,
    y: x.map(() => 0.5),
    yaxis: "y2",
    hoverinfo: "skip",
    marker: { symbol: "triangle-down", size: 8, color: palette.nonfinite, line: { width: 0 } },
  };
}

/** Without anything on them Plotly leaves axes out. */
const NOTHING = Object.freeze({ type: "scatter", mode: "markers", x: [null], y: [null], hoverinfo: "skip" });

/**
 * The axes of a heatmap and the marks above it. Its cells are painted under it: Plotly takes some 20 ms more for 100,000 of them,
 * and the patterns would be a picture that comes a frame later.
 * @param {Pick<import("./heatmap.js").HeatmapModel, "rows" | "markSteps">} model @param {Frame} frame @param {Palette} palette
 * @returns {Drawing}
 */
export function heatmapDrawing(model, frame, palette) {
  const layout = layoutOf(frame, palette, rowAxis(model, frame, "states" in model ? worstRow(/** @type {any} */ (model)) : null));
  const xaxis = { ...stepAxis(frame, palette), showgrid: false }; // it would lie on the cells
  return { traces: [NOTHING, markTrace(model.markSteps, frame, palette)], layout: { ...layout, xaxis } };
}

/** With little room the kind, a label's last word, gives way to the name; how many a row stands for is on hover. @param {import("../types.js").HeatmapRow} row @param {number} room letters */
function labelOf(row, room) {
  return shorten(row.label.length > room && room < FEW_LETTERS ? row.label.replace(/ \w+$/, "") : row.label, room);
}

/** The rows that have their names: as many as there is room for, and one that has it whatever happens. @param {number} rows @param {number} height pixels of all @param {number | null} always */
export const namedRows = (rows, height, always) => withRow(labelledRows(rows, height, LABEL_SPACING), always, (rows * LABEL_SPACING) / Math.max(1, height));

/** @param {{rows: import("../types.js").HeatmapRow[]}} model @param {Frame} frame @param {number | null} worst row that has its label whatever happens */
function rowAxis({ rows }, frame, worst) {
  const labelled = namedRows(rows.length, frame.plotHeight, worst);
  const room = Math.floor((frame.margin.l - 10) / LETTER);
  return {
    range: [rows.length - 0.5, -0.5],
    tickvals: labelled,
    ticktext: labelled.map((row) => escapePlotText(labelOf(rows[row], room))),
    ticks: "outside",
    ticklen: 3,
    tickcolor: "rgba(0,0,0,0)",
    showgrid: false,
  };
}

// Plotly reads tags and entities in every text it draws; names must arrive as themselves.

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

/** @param {string} text */
export function escapePlotText(text) {
  return text.replace(/[&<>]/g, (character) => ENTITIES[character]);
}
