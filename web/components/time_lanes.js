// Lanes on one time axis, in seconds from the first sample: one cursor, one zoom, one update.

import { timeAxis } from "../alert_marks.js";
import { clockTicks, isOverMidnight } from "../clock_ticks.js";
import { el } from "../dom.js";
import { clockAxis } from "../figure_axis.js";
import { count } from "../format.js";
import { onTheme } from "../theme.js";
import { onward, runPath } from "../url_state.js";
import { labels } from "../step_ticks.js";
import { watchWidth } from "../watch_width.js";
import { createAlertRow } from "./alert_row.js";
import { Lane } from "./lane.js";

/** @typedef {import("./lane_group.js").LaneEntry} LaneEntry */
/** @typedef {import("./lane_pointer.js").Spot} Spot */
/** @typedef {import("../types.js").GpuLanes & {origin_ns: number}} TimedLanes */

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
 * @param {import("../types.js").PageContext} ctx @param {LaneEntry[]} entries @param {() => TimedLanes} samples
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
    const when = source.axis().say(spot.step, 1);
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
