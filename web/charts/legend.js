// The legends of heatmaps: the scale of colours, and how each state looks.

import { el, replace } from "../format/dom.js";
import { paintSwatch } from "./cells/state_canvas.js";
import { SCALE_BITS, SCALE_TOP, STATE, STATE_WORDS } from "./headroom.js";
import { choiceOf, ticksOf } from "./statistics.js";
import { onTheme, palette } from "./theme.js";

const SHOWN = [STATE.saturated, STATE.inf, STATE.nan, STATE.zero, STATE.notObserved, STATE.stale];

/** @returns {{element: HTMLElement, destroy: () => void}} */
export function createLegend() {
  const element = el("div", { class: "legend", role: "note", "aria-label": "Legend: headroom in bits and the states of a cell" });
  const paint = () => replace(element, scaleBar(), ...SHOWN.map(stateItem), mark());
  paint();
  return { element, destroy: onTheme(paint) };
}

function scaleBar() {
  const ticks = SCALE_BITS.map((bits) => {
    const tick = el("span", {}, bits === SCALE_TOP ? `${bits}+ bits` : bits);
    tick.style.left = `${(bits / SCALE_TOP) * 100}%`;
    return tick;
  });
  return el("div", { class: "legend-scale" }, el("div", { class: "legend-bar" }), el("div", { class: "legend-ticks" }, ...ticks));
}

/** @param {number} state */
function stateItem(state) {
  const { word, help } = STATE_WORDS[state];
  return el("span", { class: "legend-item", title: help }, paintSwatch(state, palette(), 22, 14), ` ${word}`);
}

const mark = () => el("span", { class: "legend-item" }, el("span", { class: "legend-mark", "aria-hidden": "true" }, "▼"), " column with NaN or Inf");

// The scale of what the heatmap shows, and the look of every state. Headroom has the legend that all pages share.

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
    const isFullSet = choiceOf(shown.name)?.needs.includes("full_numel");
    const states = shown.scale === "log2" ? [STATE.inf, STATE.nan, STATE.zero, STATE.notObserved, STATE.stale] : [STATE.inf, STATE.nan, STATE.notObserved, STATE.stale];
    replace(own, statisticBar(shown), ...states.map(stateItem), isFullSet && blank(), mark());
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
  const ticks = ticksOf(statistic).map(({ at, text }) => {
    const tick = el("span", {}, text);
    tick.style.left = `${at * 100}%`;
    return tick;
  });
  const bar = el("div", { class: "legend-scale" }, el("div", { class: "legend-bar is-sequential" }), el("div", { class: "legend-ticks" }, ...ticks));
  return el("div", {}, el("span", { class: "legend-name" }, statistic.title), bar);
}

const blank = () => el("span", { class: "legend-item", title: "Measured only at the steps that have the full set" }, el("span", { class: "swatch" }), " not measured");
