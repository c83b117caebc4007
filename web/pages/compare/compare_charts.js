// Charts of one series each, with a line a run: by colour and by dash.

import { FONT, escapePlotText } from "../../charts/drawing.js";
import { draw, load, purge } from "../../charts/plotly.js";
import { onTheme, palette } from "../../charts/theme.js";
import { el, svg, watchWidth } from "../../format/dom.js";
import { count, reading } from "../../format/numbers.js";
import { timeUnit, valueNear } from "./compare_model.js";

/** @typedef {import("./compare_model.js").Line} Line */
/** @typedef {{axis: import("./compare_model.js").Axis, isLog: boolean}} Style */

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
  const element = el("section", { class: "panel compare-chart", "data-testid": `compare-${name}` }, el("h2", { title }, title), el("div", { class: "compare-frame" }, plot, cursor), readout);
  /** @type {Line[]} */
  let lines = [];
  /** @type {Style} */
  let style = { axis: "", isLog: false };
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
    /** @param {Line[]} next @param {Style} how */
    async update(next, how) {
      lines = next;
      style = how;
      leave();
      await paint();
    },
    destroy() {
      isGone = true;
      for (const stop of stops) stop();
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
  const title = axis === "time" ? `time, ${unit}` : axis === "tokens" ? "tokens" : axis === "relative" ? "steps since the first" : "step";
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
