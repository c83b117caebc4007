// Charts of one series each, with a line a run: by colour and by dash.

import { FONT, escapePlotText } from "../../charts/drawing.js";
import { draw, load, pngUrl, purge } from "../../charts/plotly.js";
import { createFigurePanel } from "../../charts/saving/figure_menu.js";
import { dataBytes, fileName } from "../../charts/saving/files.js";
import { LEAST_WIDTH, LINES, TITLE, pictureLegend, pictureTitle } from "../../charts/saving/lane_files.js";
import { onTheme, palette } from "../../charts/theme.js";
import { el, svg, watchWidth } from "../../format/dom.js";
import { clip, count, plural, reading } from "../../format/numbers.js";
import { timeUnit, valueNear } from "./compare_model.js";

/** @typedef {import("./compare_model.js").Line} Line */
/** @typedef {{axis: import("./compare_model.js").Axis, isLog: boolean, smooth: number}} Style */
/** @typedef {Pick<import("./compare_model.js").ComparedRun, "id" | "name" | "title">} NamedRun */

/** Of the lines in their order, as Plotly and as SVG has them. */
export const DASHES = ["solid", "7px,3px", "2px,3px", "9px,3px,2px,3px", "14px,4px", "14px,3px,2px,3px", "5px,2px", "2px,2px,9px,2px"];
const HEIGHT = 210;
const MARGIN = { l: 58, r: 12, t: 6, b: 34 };

/** A piece of a run's line. @param {number} at its place among the runs */
export function lineSwatch(at) {
  const dash = DASHES[at] === "solid" ? null : DASHES[at].replaceAll("px", "");
  return svg("svg", { class: "run-line", "data-line": at, width: 34, height: 10, "aria-hidden": "true" }, svg("line", { x1: 1, x2: 33, y1: 5, y2: 5, "stroke-width": 2.2, "stroke-dasharray": dash }));
}

/** As the theme has it: the colours are in runs.css. @param {number} at */
function colourOf(at) {
  const swatch = document.querySelector(`.run-line[data-line="${at}"]`);
  return swatch ? getComputedStyle(swatch).color : palette().muted;
}

/** @param {string} title @param {string} name of its test id */
export function createChart(title, name) {
  const plot = el("div", { class: "compare-plot", role: "img", "aria-label": title, pointermove: hover, pointerleave: leave });
  const readout = el("p", { class: "compare-readout muted" });
  const cursor = el("span", { class: "compare-cursor", hidden: true });
  /** @type {Line[]} */
  let lines = [];
  /** @type {readonly NamedRun[]} */
  let runs = [];
  /** @type {Style} */
  let style = { axis: "", isLog: false, smooth: 0 };
  const figure = {
    fileName: () => fileName("compare", ...runs.map(({ id }) => id), name),
    picture: () => pictureOf(title, lines, runs, style, plot.clientWidth),
    rows: () => rowsOf(lines, runs, style),
    files: () => [],
    noFiles: "The server has files of one run alone: its figures on the run's own pages offer them.",
  };
  const panel = createFigurePanel(title, figure, () => summaryOf(lines, runs, style));
  const { element } = panel;
  element.classList.add("compare-chart");
  element.dataset.testid = `compare-${name}`;
  panel.heading.title = title;
  panel.fill(el("div", { class: "compare-frame" }, plot, cursor), readout);
  let span = [0, 1];
  let isGone = false;
  const stops = [onTheme(() => void paint()), watchWidth(element, () => void paint())];

  async function paint() {
    await load();
    if (isGone || !element.isConnected || !plot.clientWidth) return;
    const { drawing, range } = drawn(lines, style, plot.clientWidth);
    span = range;
    await draw(plot, drawing);
    plot.dataset.ready = "";
    panel.update(lines.length > 0);
  }

  /** @param {PointerEvent} event */
  function hover(event) {
    const box = plot.getBoundingClientRect();
    const across = (event.clientX - box.left - MARGIN.l) / (box.width - MARGIN.l - MARGIN.r);
    if (across < 0 || across > 1) return leave();
    const at = span[0] + across * (span[1] - span[0]);
    cursor.hidden = false;
    cursor.style.transform = `translateX(${Math.round(event.clientX - box.left)}px)`;
    const values = lines.map((line) => ({ run: line.run, value: valueNear(line, at) }));
    readout.replaceChildren(placeText(at, style.axis), ...values.flatMap(({ run, value }) => [" ", lineSwatch(run), value === null ? " none" : ` ${reading(value)}`]));
  }

  function leave() {
    cursor.hidden = true;
    readout.replaceChildren();
  }

  return {
    element,
    /** @param {Line[]} next @param {Style} how @param {readonly NamedRun[]} of the lines, by their places */
    async update(next, how, of) {
      lines = next;
      runs = of;
      style = how;
      leave();
      await paint();
    },
    destroy() {
      isGone = true;
      for (const stop of stops) stop();
      panel.destroy();
      purge(plot);
    },
  };
}

/** @param {number} at @param {Style["axis"]} axis */
function placeText(at, axis) {
  if (axis === "time") {
    const { divisor, unit } = timeUnit(at);
    return `${reading(at / divisor)} ${unit}:`;
  }
  return axis === "tokens" ? `${count(Math.round(at))} tokens:` : `step ${count(Math.round(at))}:`;
}

/** @param {readonly Line[]} lines @param {Style} style @param {number} width */
function drawn(lines, { axis, isLog }, width) {
  const colours = palette();
  const ends = lines.flatMap(({ x }) => [x[0], x[x.length - 1]]);
  const range = ends.length ? [Math.min(...ends), Math.max(...ends)] : [0, 1];
  if (range[0] === range[1]) range[1] += 1;
  const { divisor, unit } = axis === "time" ? timeUnit(range[1]) : { divisor: 1, unit: "" };
  const traces = lines.map(({ run, x, y }) => ({
    type: "scatter",
    mode: "lines",
    x: divisor === 1 ? x : x.map((value) => value / divisor),
    y,
    hoverinfo: "skip",
    line: { color: colourOf(run), width: 1.6, dash: DASHES[run] },
  }));
  const title = axis === "time" ? `time, ${unit}` : AXIS_TITLES[axis];
  const plain = { gridcolor: colours.line, zeroline: false, tickangle: 0 };
  const layout = {
    width,
    height: HEIGHT,
    margin: { ...MARGIN, pad: 0 },
    autosize: false,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: FONT, size: 11, color: colours.muted },
    showlegend: false,
    hovermode: false,
    xaxis: { ...plain, type: "linear", range: range.map((value) => value / divisor), nticks: 6, title: { text: escapePlotText(title), standoff: 4 } },
    yaxis: { ...plain, type: isLog ? "log" : "linear", nticks: 5, exponentformat: "e" },
  };
  return { drawing: { traces, layout }, range };
}

const AXIS_TITLES = { "": "step", relative: "steps since the first", time: "time", tokens: "tokens" };

// The same as files: a picture, every point, and a table.

/** @param {readonly NamedRun[]} runs @param {number} at */
const nameOf = (runs, at) => clip(runs[at]?.title || runs[at]?.name || "", 60);

/** @param {string} title @param {readonly Line[]} lines @param {readonly NamedRun[]} runs @param {Style} style @param {number} shown width on the page */
async function pictureOf(title, lines, runs, style, shown) {
  if (!lines.length) throw new Error("nothing is drawn yet");
  const colours = palette();
  const width = Math.max(LEAST_WIDTH, shown);
  const { drawing } = drawn(lines, style, width);
  const layout = /** @type {any} */ (drawing.layout);
  const height = HEIGHT + TITLE + LINES;
  const about = [plural(runs.length, "run"), style.smooth ? `smoothed, ${style.smooth}` : "", style.isLog ? "logarithmic" : ""].filter(Boolean).join(" · ");
  const traces = drawing.traces.map((trace, i) => ({ .../** @type {any} */ (trace), name: escapePlotText(nameOf(runs, lines[i].run)) }));
  const page = { height, margin: { ...MARGIN, t: TITLE + LINES, pad: 0 }, paper_bgcolor: colours.panel, title: pictureTitle({ title, about }, { width, height }, colours), showlegend: true, legend: pictureLegend(colours) };
  return new Blob([dataBytes(await pngUrl({ traces, layout: { ...layout, ...page } }))], { type: "image/png" });
}

/** A point a row; unsmoothed, a column of merged steps has two, its least and its greatest. @param {readonly Line[]} lines @param {readonly NamedRun[]} runs @param {Style} style @returns {import("../../charts/saving/files.js").Rows} */
function rowsOf(lines, runs, { axis }) {
  const place = axis === "time" ? "time_s" : axis === "" ? "step" : axis === "relative" ? "steps_since_first" : axis;
  return { columns: ["run", "name", place, "value"], rows: lines.flatMap(({ run, x, y }) => x.map((at, i) => [runs[run]?.id ?? run, nameOf(runs, run), at, y[i]])) };
}

/** @param {readonly Line[]} lines @param {readonly NamedRun[]} runs @param {Style} style @returns {import("../../charts/saving/rows.js").Summary} */
function summaryOf(lines, runs, { axis }) {
  const rows = lines.map(({ run, x, y }) => {
    const [least, greatest] = y.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    return [nameOf(runs, run), reading(y[0]), reading(y[y.length - 1]), reading(least), reading(greatest), placeText(x[x.length - 1], axis).replace(/:$/, "")];
  });
  return { columns: ["Run", "First", "Last", "Least", "Greatest", "To"], rows, note: "The CSV file has every point." };
}
