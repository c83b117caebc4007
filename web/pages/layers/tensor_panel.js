// The panel of one tensor beside the layers: its details, magnitudes, spread over ranks, exponents and alerts.

import * as api from "../../api/client.js";
import { ApiError } from "../../api/fetch.js";
import { createTensorList, notableAlerts } from "../../api/queries.js";
import { onward, runPath, shownRange } from "../../api/url_state.js";
import { layoutOf, markTrace } from "../../charts/drawing.js";
import { EXPONENTS } from "../../charts/lanes/exponents.js";
import { createPlainLanes } from "../../charts/lanes/lane_group.js";
import { LANES } from "../../charts/lanes/lane_specs.js";
import { broken, points, readLines, valueAt } from "../../charts/lines.js";
import { channels } from "../../charts/colours.js";
import { el, link, replace } from "../../format/dom.js";
import { bits, clip, plural } from "../../format/numbers.js";
import { reuseParts } from "../../format/reuse_rows.js";
import { alertLines, alertsOn, tensorDetails, worstPlace } from "../../widgets/tensor_details.js";

/** @typedef {import("../../types.js").PageContext} PageContext */
/** @typedef {import("../../types.js").Run} Run */
/** @typedef {import("../../types.js").Tensor} Tensor */

/** Below this the panel lies under the picture, as in layers.css. Pixels. */
const BESIDE = 1100;

/**
 * @param {PageContext} ctx @param {() => void} refetch
 * @param {HTMLElement} aside holds it; hidden while no tensor is chosen
 */
export function createTensorPanel(ctx, refetch, aside) {
  /** @type {ReturnType<typeof createTensorBody> | null} */
  let open = null;
  /** @type {number | null} */
  let shown = null;
  let isFirst = true;
  /** What had the focus before. @type {Element | null} */
  let before = null;
  const list = createTensorList(ctx.params.id);

  function shut() {
    open?.destroy();
    open = null;
    shown = null;
    aside.hidden = true;
    replace(aside);
  }

  function close() {
    const back = before?.isConnected ? before : document.querySelector("[data-testid='figure-layers']");
    shut();
    ctx.setState({ tensor: null });
    if (back instanceof HTMLElement) back.focus();
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    const isInside = event.target instanceof Node && aside.contains(event.target);
    if (event.key !== "Escape" || aside.hidden || document.querySelector("dialog[open]")) return;
    if (!isInside && (event.defaultPrevented || (event.target instanceof HTMLElement && event.target.matches("input, select, textarea")))) return;
    event.preventDefault();
    close();
  }

  /** @param {Tensor} tensor */
  function show(tensor) {
    const isChosenNow = !isFirst; // by the reader, and not by the address the page came with
    if (isChosenNow && !aside.contains(document.activeElement)) before = document.activeElement;
    open?.destroy();
    open = createTensorBody(ctx, refetch, tensor, close);
    shown = tensor.tensor;
    aside.hidden = false;
    replace(aside, open.element);
    if (isChosenNow) open.heading.focus({ preventScroll: window.innerWidth > BESIDE }); // below the picture it would not be seen
  }

  /** The tensor of that number; without one nothing opens. @param {number} number @param {AbortSignal} signal */
  async function findTensor(number, signal) {
    aside.hidden = false; // its place before its content, so that the picture is not drawn in another width first
    try {
      return (await list(number, signal)).find((one) => one.tensor === number);
    } catch (error) {
      if (!signal.aborted && open === null) shut();
      throw error;
    }
  }

  document.addEventListener("keydown", key);
  return {
    /** @param {Run} run @param {AbortSignal} signal */
    async update(run, signal) {
      const number = ctx.state.tensor;
      if (number === null) shut();
      else {
        const tensor = await findTensor(number, signal);
        if (signal.aborted || number !== ctx.state.tensor) return;
        if (!tensor) missing(aside);
        else if (shown !== number) show(tensor);
        await open?.update(run, signal);
      }
      isFirst = false;
    },
    destroy() {
      document.removeEventListener("keydown", key);
      open?.destroy();
    },
  };

  /** @param {HTMLElement} where */
  function missing(where) {
    shut();
    where.hidden = false;
    replace(where, el("section", { class: "panel tensor-panel" }, panelHead("No such tensor", close).element, el("p", {}, "This run has none of that number.")));
  }
}

// What the panel of one tensor shows: details, magnitudes, spread over ranks, exponents, its worst place, alerts, ways on.

/** Left margin: only powers of two and bits stand there. Pixels. */
const LABELS = 48;
const LINE_HEIGHT = 190;
const EXPONENT_HEIGHT = 170;

/** @param {string} text @param {() => void} close */
function panelHead(text, close) {
  const heading = el("h2", { class: "tensor-name", tabindex: -1, title: text }, clip(text));
  const button = el("button", { type: "button", class: "quiet", click: close, title: "Close (Escape)" }, "Close");
  return { heading, element: el("header", { class: "tensor-panel-head" }, heading, button) };
}

/** One tensor's part, from when it is chosen until another is. @param {PageContext} ctx @param {() => void} refetch @param {Tensor} tensor @param {() => void} close */
function createTensorBody(ctx, refetch, tensor, close) {
  const { heading, element: header } = panelHead(tensor.label, close);
  const worst = el("div", {});
  const alerts = el("div", {});
  const ways = el("p", { class: "jumps" });
  const lanes = createPlainLanes(ctx, entriesOf(tensor.tensor), { pick: (_, spot) => void openStep(spot.step), pickLabel: () => {} }, refetch);

  /** The worst rank of a step. @param {number} step */
  async function openStep(step) {
    try {
      const place = await placeOf(ctx, { start: step, stop: step + 1 }, tensor.tensor);
      if (!place) return ctx.notify("Nothing was observed here.");
      return ctx.navigate(runPath(ctx.params.id, "step", onward(ctx.state, { step: place.step, rank: place.rank, tensor: place.tensor })));
    } catch (error) {
      return ctx.notify(`The step could not be read: ${messageOf(error)}`);
    }
  }

  /** @param {string} run @param {AbortSignal} signal */
  async function updateAlerts(run, signal) {
    try {
      reuseParts(alerts, alertLines(run, alertsOn(await notableAlerts(run, signal), tensor), ctx.state));
    } catch (error) {
      if (signal.aborted) throw error; // what comes after it reports them
      reuseParts(alerts, el("p", { class: "muted" }, `Its alerts could not be read: ${messageOf(error)}`));
    }
  }

  return {
    heading,
    element: el("section", { class: "panel tensor-panel" }, header, tensorDetails(tensor), worst, alerts, ways, lanes.element),
    /** @param {Run} run @param {AbortSignal} signal */
    async update(run, signal) {
      const id = String(run.id);
      const range = shownRange(ctx.state, run);
      reuseParts(ways, el("span", {}, link(runPath(id, "tensor", onward(ctx.state, { rank: ctx.state.rank, tensor: tensor.tensor })), {}, "Open the Tensor page")));
      const place = placeOf(ctx, range, tensor.tensor, signal).then((worstCell) => reuseParts(worst, worstPlace(id, worstCell, ctx.state)));
      await Promise.all([place, updateAlerts(id, signal), lanes.update({ run, state: ctx.state, range }, signal)]);
    },
    destroy: lanes.destroy,
  };
}

/** @param {unknown} error */
const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/** @param {number} tensor @returns {import("../../charts/lanes/lane_group.js").LaneEntry[]} */
function entriesOf(tensor) {
  /** @type {{ranks?: number, observed_ranks?: number}} */
  let meta = {};
  const left = LABELS;
  const ofRank = (/** @type {import("../../charts/lanes/lane.js").View} */ { state }) => ({ rank: state.rank ?? "all", tensor });
  const overRanks = {
    left,
    query: () => ({ rank: "all", tensor }),
    onModel: (/** @type {any} */ model) => (meta = model.meta),
    title: () => percentileTitle(meta),
  };
  return [
    { spec: { ...LANES.tensor, plotHeight: () => LINE_HEIGHT }, options: { query: ofRank, left } },
    { spec: PERCENTILES, options: overRanks },
    { spec: { ...EXPONENTS, plotHeight: () => EXPONENT_HEIGHT }, options: { query: ofRank, left } },
  ];
}

/** Where a tensor is worst in a range; null where it was not observed. @param {PageContext} ctx @param {import("../../types.js").StepRange} range @param {number} tensor @param {AbortSignal} [signal] */
async function placeOf(ctx, range, tensor, signal) {
  try {
    return await api.locate(ctx.params.id, { ...range, rank: ctx.state.rank ?? "all", tensor }, signal);
  } catch (error) {
    if (error instanceof ApiError && error.code === "nothing_there") return null;
    throw error;
  }
}

// One tensor's headroom over the ranks as a lane: least to most, 10 to 90 %, and the median.

/** @typedef {import("../../charts/lines.js").LinesModel} LinesModel */
/** @typedef {import("../../charts/lines.js").Series} Series */

const PLOT_HEIGHT = 120;
/** With fewer columns than this each has a dot as well: a lone point has no line. */
const FEW = 80;

/**
 * The outline of what lies between two lines, a closed shape for each stretch without a hole. Pure.
 * @param {Series} low @param {Series} high @param {number} stepsPerColumn
 */
export function band(low, high, stepsPerColumn) {
  const [below, above] = [broken(low, stepsPerColumn), broken(high, stepsPerColumn)];
  /** @type {{x: number[], y: number[]}} */
  const outline = { x: [], y: [] };
  for (let from = 0, to; from < below.x.length; from = to + 1) {
    to = from;
    while (to < below.x.length && Number.isFinite(below.y[to])) to += 1;
    for (let at = from; at < to; at += 1) push(outline, above.x[at], above.y[at]);
    for (let at = to - 1; at >= from; at -= 1) push(outline, below.x[at], below.y[at]);
    push(outline, NaN, NaN);
  }
  return outline;
}

/** @param {{x: number[], y: number[]}} to @param {number} x @param {number} y */
function push(to, x, y) {
  to.x.push(x);
  to.y.push(y);
}

/** @param {LinesModel} model @param {import("../../charts/frame.js").Frame} frame @param {import("../../charts/theme.js").Palette} palette @returns {import("../../charts/drawing.js").Drawing} */
function drawing({ series, markSteps, meta }, frame, palette) {
  const [least, low, median, high, most] = series;
  const per = meta.steps_per_column;
  const filled = (/** @type {Series} */ from, /** @type {Series} */ to, /** @type {number} */ share) => ({
    type: "scatter", mode: "lines", ...band(from, to, per), fill: "toself", hoverinfo: "skip",
    fillcolor: `rgba(${channels(palette.accent).join(",")},${share})`, line: { width: 0 },
  });
  const line = (/** @type {Series} */ one, /** @type {string} */ colour, /** @type {number} */ width) => ({
    type: "scatter", mode: one.x.length < FEW ? "lines+markers" : "lines", x: broken(one, per).x, y: broken(one, per).y,
    connectgaps: false, hoverinfo: "skip", line: { color: colour, width }, marker: { color: colour, size: 3 },
  });
  const bands = [filled(least, most, 0.16), filled(low, high, 0.26)];
  const lines = [line(least, palette.bad, 1.2), line(median, palette.accent, 1.6)];
  return { traces: [...bands, ...lines, markTrace(markSteps, frame, palette)], layout: layoutOf(frame, palette, { nticks: 5, rangemode: "tozero" }) };
}

/** @param {LinesModel} model @param {number} step */
function readout({ series, markSteps, meta }, step) {
  const reach = Math.max(0.5, meta.steps_per_column / 2);
  const parts = series.flatMap((one) => {
    const value = valueAt(one, step, reach);
    return value === null ? [] : `${one.name} ${bits(value)}`;
  });
  if (markSteps.some((mark) => Math.abs(mark - step) <= reach)) parts.push("not finite on some rank");
  return parts.join(", ") || (meta.observed_ranks === 0 ? "not observed on any rank" : "not observed on any rank, or all zero");
}

/** What the lane is called: over how many ranks. @param {{ranks?: number, observed_ranks?: number}} meta */
export function percentileTitle({ ranks = 0, observed_ranks: observed = 0 }) {
  if (ranks <= 1) return "Headroom: the run has one rank, so there is no spread";
  return `Headroom over ${plural(ranks, "rank")}${observed < ranks ? `, observed on ${observed}` : ""}`;
}

/** @type {import("../../charts/lanes/lane_specs.js").LaneSpec} */
export const PERCENTILES = {
  name: "percentiles",
  title: "Headroom over ranks, bits",
  unit: "bits",
  empty: "This tensor was not observed on any rank in these steps, or was zero or not finite wherever it was.",
  plotHeight: () => PLOT_HEIGHT,
  read: readLines,
  isEmpty: (/** @type {LinesModel} */ { series }) => !series.some((one) => points(one).length),
  draw: drawing,
  readout,
};
