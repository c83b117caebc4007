// The legends of heatmaps: the scale of colours, and how each state is drawn.

import { el, replace } from "../format/dom.js";
import { paintSwatch } from "./cells/patterns.js";
import { SCALES, costShare, gradient, scaleOf } from "./colours.js";
import { SCALE_BITS, SCALE_TOP, STATE, STATE_LABELS, ticksOf } from "./statistics.js";
import { onTheme, palette } from "./theme.js";

const SHOWN = [STATE.saturated, STATE.inf, STATE.nan, STATE.zero, STATE.notObserved, STATE.stale];

/** @returns {{element: HTMLElement, destroy: () => void}} */
export function createLegend() {
  const element = el("div", { class: "legend", role: "note", "aria-label": "Legend: headroom in bits and the states of a cell" });
  const paint = () => replace(element, headroomBar(), ...SHOWN.map(stateItem), mark());
  paint();
  return { element, destroy: onTheme(paint) };
}

/** A bar with all colours of a scale, and texts along it. @param {import("./colours.js").ColourScale} scale @param {readonly {at: number, text: string}[]} ticks `at`: 0 to 1 */
export function colourBar(scale, ticks) {
  const bar = el("div", { class: "legend-bar" });
  bar.style.background = gradient(scale);
  const texts = ticks.map(({ at, text }) => {
    const tick = el("span", {}, text);
    tick.style.left = `${100 * at}%`;
    return tick;
  });
  return el("div", { class: "legend-scale" }, bar, el("div", { class: "legend-ticks" }, ...texts));
}

const headroomBar = () => colourBar(SCALES.headroom, SCALE_BITS.map((bits) => ({ at: bits / SCALE_TOP, text: bits === SCALE_TOP ? `${bits}+ bits` : String(bits) })));

/** @param {import("./colours.js").CostScale} scale */
export function costBar(scale) {
  const bar = colourBar(SCALES.cost, scale.ticks.map((value) => ({ at: costShare(value, scale), text: scale.text(value) })));
  bar.classList.add("is-cost");
  return bar;
}

/** @param {number} state */
function stateItem(state) {
  const { label, help } = STATE_LABELS[state];
  return el("span", { class: "legend-item", title: help }, paintSwatch(state, palette(), 22, 14), ` ${label}`);
}

/** @param {string} swatch its class @param {string} style @param {string} text */
const item = (swatch, style, text) => el("span", { class: "legend-item" }, el("span", { class: swatch, "data-style": style, "aria-hidden": "true" }), text);

/** What a filled area means. @param {string} style `data-style` of its swatch @param {string} text */
export const areaItem = (style, text) => item("swatch", style, text);

/** What a line means. @param {string} style `data-style` of its swatch @param {string} text */
export const lineItem = (style, text) => item("swatch is-line", style, text);

const mark = () => el("span", { class: "legend-item" }, el("span", { class: "legend-mark", "aria-hidden": "true" }, "▼"), " column with NaN or Inf");

// The scale of what the heatmap shows, and how each state is drawn. Headroom has the legend that all pages share.

/** @typedef {import("./statistics.js").Statistic} Statistic */

export function createStatisticLegend() {
  const headroom = createLegend();
  const own = el("div", { class: "legend", role: "note", hidden: true });
  const element = el("div", {}, headroom.element, own);
  /** @type {Statistic | null} */
  let shown = null;

  function paint() {
    if (!shown || shown.scale === "bits") return;
    own.setAttribute("aria-label", `Legend: ${shown.title.toLowerCase()} and the states of a cell`);
    const states = shown.scale === "room" ? [STATE.scaleTooSmall, STATE.scaleStale, STATE.zero, STATE.notObserved, STATE.stale] : ["log2", "change", "ratio"].includes(shown.scale) ? [STATE.inf, STATE.nan, STATE.zero, STATE.notObserved, STATE.stale] : [STATE.inf, STATE.nan, STATE.notObserved, STATE.stale];
    replace(own, statisticBar(shown), ...states.map(stateItem), shown.is_full_set && blank("not measured", "Measured only at the steps that have the full set"), shown.scale === "change" && blank("nothing before it", "The first column has no steps before it to be compared with"), shown.scale !== "room" && mark());
  }

  const stop = onTheme(paint);
  return {
    element,
    /** @param {Statistic | null | undefined} statistic null is headroom */
    update(statistic) {
      const isNew = (statistic?.name ?? "") !== (shown?.name ?? "");
      shown = statistic ?? null;
      const isBits = !shown || shown.scale === "bits";
      headroom.element.hidden = !isBits;
      own.hidden = isBits;
      if (isNew) paint();
    },
    destroy() {
      stop();
      headroom.destroy();
    },
  };
}

/** @param {Statistic} statistic */
function statisticBar(statistic) {
  const bar = colourBar(SCALES[scaleOf(statistic)], ticksOf(statistic));
  bar.classList.toggle("is-worded", statistic.scale === "room"); // words stand under both ends
  return el("div", {}, el("span", { class: "legend-name" }, statistic.title), bar);
}

/** @param {string} text @param {string} title */
const blank = (text, title) => el("span", { class: "legend-item", title }, el("span", { class: "swatch" }), ` ${text}`);
