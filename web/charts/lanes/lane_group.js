// Lanes with one axis, of steps or of time: one cursor, one zoom, one update.

import { onward, runPath } from "../../api/url_state.js";
import { el, settledWidth, watchWidth } from "../../format/dom.js";
import { count } from "../../format/numbers.js";
import { stepAxis, timeAxis } from "../alerts/alert_marks.js";
import { createAlertRow } from "../alerts/alert_row.js";
import { clockAxis, clockTicks, draggedRange, isOverMidnight, labels } from "../frame.js";
import { onTheme } from "../theme.js";
import { Lane } from "./lane.js";
import { createNavigator } from "./lane_navigation.js";
import { createStepAxis } from "./step_axis.js";

/** @typedef {import("./lane_pointer.js").Spot} Spot */
/** @typedef {import("./lane.js").View} View */
/** @typedef {{spec: import("./lane_specs.js").LaneSpec, options?: import("./lane.js").LaneOptions}} LaneEntry */

/**
 * @typedef {object} GroupOptions
 * @property {boolean} [hasStrip] the alerts, and one axis of steps for all lanes, are an element of their own, which the page places
 * @property {(view: View) => import("../../types.js").StepRange | null} [incident] steps that are shaded on all lanes
 */

/**
 * @param {import("../../types.js").PageContext} ctx @param {LaneEntry[]} entries @param {() => void} refetch @param {GroupOptions} [options]
 */
export function createLaneGroup(ctx, entries, refetch, { hasStrip = false, incident = () => null } = {}) {
  const navigator = createNavigator(ctx);
  const handlers = {
    hover,
    pick: navigator.pick,
    pickLabel: navigator.pickLabel,
    zoom: (/** @type {number} */ low, /** @type {number} */ high) => ctx.setState(draggedRange(low, high)),
    reset: () => ctx.setState({ start: null, stop: null }),
  };
  const lanes = entries.map(({ spec, options }) => new Lane(spec, options ?? {}, handlers));
  const alerts = createAlertRow(ctx.params.id, { marked: (steps) => lanes.forEach((lane) => lane.mark(steps)), point });
  const steps = hasStrip ? createStepAxis() : null;
  const strip = el("div", { class: "lane-strip" }, alerts.element, ...(steps ? [steps.element] : []));
  const element = el("div", { class: "lanes" }, !hasStrip && alerts.element, ...lanes.map((lane) => lane.element));
  const stops = [onTheme(redraw), settledWidth(element, resized, refetch)];
  /** What is pointed at stays so while new data moves it. @type {{source: Lane, spot: Spot} | null} */
  let pointed = null;

  /** @param {Lane} source @param {Spot | null} spot */
  function hover(source, spot) {
    pointed = spot && { source, spot };
    for (const lane of lanes) {
      lane.show(spot?.step ?? null, lane === source ? (spot?.row ?? null) : null);
    }
    steps?.show(spot?.step ?? null);
    if (spot && source.shows(spot)) source.readout.textContent = `step ${count(spot.step)} · ${source.readout.textContent}`;
  }

  /** @param {number | null} step */
  function point(step) {
    for (const lane of lanes) lane.show(step, null);
    steps?.show(step);
  }

  function redraw() {
    for (const lane of lanes) lane.render();
  }

  function resized() {
    pointed = null;
    point(null); // the cursor stood where it was wide
    redraw();
  }

  return {
    element,
    /** Only with `hasStrip`. */
    strip,
    lanes,
    /** @param {any} model of one of the lanes @param {import("../heatmap.js").Cell} cell */
    pickCell(model, cell) {
      const lane = lanes.find((one) => one.model === model);
      if (lane) navigator.pickCell(lane, cell);
    },
    pickPoint: navigator.pickPoint,
    /** @param {View} view @param {AbortSignal} signal */
    async update(view, signal) {
      const axis = (/** @type {number} */ width) => stepAxis(view.range, width, entries[0].options?.left);
      steps?.update(view.range);
      const shaded = incident(view);
      for (const lane of lanes) lane.shadeSteps(shaded);
      const drawn = Promise.all(lanes.map((lane) => lane.update(view, signal)));
      await Promise.all([drawn, alerts.update(axis, drawn, signal)]);
      if (pointed && !pointed.source.shows(pointed.spot)) hover(pointed.source, null); // other steps are shown now
      else if (pointed) hover(pointed.source, pointed.spot);
      alerts.show(axis); // a pointed-at step has moved with the lanes
    },
    destroy() {
      stops.forEach((stop) => stop());
      alerts.destroy();
      lanes.forEach((lane) => lane.destroy());
    },
  };
}

// Lanes on one step axis with one cursor and one zoom, beside a page's main group: without alerts of their own.

/**
 * @param {import("../../types.js").PageContext} ctx @param {LaneEntry[]} entries
 * @param {{pick: (lane: Lane, spot: Spot) => void, pickLabel: (lane: Lane, row: number) => void}} picked @param {() => void} refetch
 */
export function createPlainLanes(ctx, entries, picked, refetch) {
  const handlers = {
    ...picked,
    hover,
    zoom: (/** @type {number} */ low, /** @type {number} */ high) => ctx.setState(draggedRange(low, high)),
    reset: () => ctx.setState({ start: null, stop: null }),
  };
  const lanes = entries.map(({ spec, options }) => new Lane(spec, options ?? {}, handlers));
  const element = el("div", { class: "lanes" }, ...lanes.map((lane) => lane.element));
  const stops = [onTheme(redraw), settledWidth(element, resized, refetch)];

  /** @param {Lane} source @param {Spot | null} spot */
  function hover(source, spot) {
    for (const lane of lanes) lane.show(spot?.step ?? null, lane === source ? (spot?.row ?? null) : null);
    if (spot && source.shows(spot)) source.readout.textContent = `step ${count(spot.step)} · ${source.readout.textContent}`;
  }

  function redraw() {
    for (const lane of lanes) void lane.render();
  }

  function resized() {
    for (const lane of lanes) lane.show(null, null); // the cursor stood where it was wide
    redraw();
  }

  return {
    element,
    lanes,
    /** @param {View} view @param {AbortSignal} signal */
    async update(view, signal) {
      await Promise.all(lanes.map((lane) => lane.update(view, signal)));
    },
    destroy() {
      stops.forEach((stop) => stop());
      lanes.forEach((lane) => lane.destroy());
    },
  };
}

// Lanes on one time axis, in seconds from the first sample: one cursor, one zoom, one update.

/** @typedef {import("../../types.js").GpuLanes & {origin_ns: number}} TimedLanes */

/** Pixels that a label needs, and one with a day in it. */
const LABEL = 75;
const DATED_LABEL = 105;

class TimeLane extends Lane {
  /** @param {import("./lane_specs.js").LaneSpec} spec @param {import("./lane.js").LaneOptions} options @param {import("./lane.js").LaneHandlers} handlers @param {() => number} origin Unix time of second 0 */
  constructor(spec, options, handlers, origin) {
    super(spec, options, handlers);
    this.origin = origin;
  }

  axis() {
    return clockAxis(this.origin(), this.view !== null && isOverMidnight(this.view.range, this.origin()));
  }

  label() {
    return `${this.spec.title} over time. Left and right arrows move by a sample, Enter opens its step.`;
  }
}

/**
 * @param {import("../../types.js").PageContext} ctx @param {LaneEntry[]} entries @param {() => TimedLanes} samples
 * @param {(span: {start_ns: number, stop_ns: number} | null) => void} zoomed to this part of the time; null for all
 */
export function createTimeLanes(ctx, entries, samples, zoomed) {
  const handlers = {
    hover,
    pick: (/** @type {Lane} */ _, /** @type {Spot} */ spot) => {
      const step = stepAt(spot.step);
      if (step !== null) ctx.navigate(runPath(ctx.params.id, "step", onward(ctx.state, { step, rank: samples().rank })));
    },
    pickLabel() {},
    zoom: (/** @type {number} */ low, /** @type {number} */ high) => zoomed({ start_ns: at(Math.min(low, high)), stop_ns: at(Math.max(low, high)) }),
    reset: () => zoomed(null),
  };
  const lanes = entries.map(({ spec, options }) => new TimeLane(timed(spec), options ?? {}, handlers, () => samples().origin_ns));
  const alerts = createAlertRow(ctx.params.id, { marked: (seconds) => lanes.forEach((lane) => lane.mark(seconds)), point });
  const element = el("div", { class: "lanes" }, alerts.element, ...lanes.map((lane) => lane.element));
  const redraw = () => lanes.forEach((lane) => void lane.render());
  const stops = [onTheme(redraw), watchWidth(element, resized)];

  function resized() {
    point(null); // the cursor stands at a pixel of the old width
    redraw();
  }

  /** @param {number | null} second */
  function point(second) {
    for (const lane of lanes) lane.show(second, null);
  }

  const at = (/** @type {number} */ second) => Math.max(0, Math.round(samples().origin_ns + second * 1e9));

  /** The step that was open at a second. @param {number} second */
  function stepAt(second) {
    const { times_ns: times, steps } = samples();
    const next = times.findIndex((time) => time > at(second + 0.5));
    return steps[next < 0 ? times.length - 1 : Math.max(0, next - 1)] ?? null;
  }

  /** @param {Lane} source @param {Spot | null} spot */
  function hover(source, spot) {
    point(spot?.step ?? null);
    if (!spot) return;
    const step = stepAt(spot.step);
    const when = source.axis().text(spot.step, 1);
    source.readout.textContent = `${when}${step === null ? "" : `, step ${count(step)}`} · ${source.readout.textContent}`;
  }

  /** With the clock's times along the axis. @param {import("./lane_specs.js").LaneSpec} spec @returns {import("./lane_specs.js").LaneSpec} */
  function timed(spec) {
    return {
      ...spec,
      draw(model, frame, palette) {
        const { traces, layout } = spec.draw(model, frame, palette);
        const { origin_ns } = samples();
        const label = isOverMidnight(frame.range, origin_ns) ? DATED_LABEL : LABEL;
        const ticks = clockTicks(frame.range, origin_ns, Math.max(2, Math.floor(frame.plotWidth / label)));
        const { xaxis } = /** @type {any} */ (layout);
        return { traces, layout: { ...layout, xaxis: { ...xaxis, ...labels(ticks, frame) } } };
      },
    };
  }

  return {
    element,
    /** @param {import("./lane.js").View} view whose range is in seconds @param {AbortSignal} signal */
    async update(view, signal) {
      const axis = (/** @type {number} */ width) => timeAxis(view.range, samples().origin_ns, width);
      const drawn = Promise.all(lanes.map((lane) => lane.update(view, signal)));
      await Promise.all([drawn, alerts.update(axis, drawn, signal)]);
      alerts.show(axis); // a pointed-at second has moved with the lanes
    },
    destroy() {
      stops.forEach((stop) => stop());
      alerts.destroy();
      lanes.forEach((lane) => lane.destroy());
    },
  };
}
