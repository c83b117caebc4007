// The scale of what the heatmap shows, and the look of every state. Headroom has the legend that all pages share.

import { el, replace } from "../dom.js";
import { STATE, STATE_WORDS } from "../headroom.js";
import { paintSwatch } from "../state_canvas.js";
import { choiceOf, ticksOf } from "../statistics.js";
import { onTheme, palette } from "../theme.js";
import { createLegend } from "./legend.js";

/** @typedef {import("../statistics.js").Statistic} Statistic */

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
    replace(own, scaleBar(shown), ...states.map(stateItem), isFullSet && blank(), mark());
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
function scaleBar(statistic) {
  const ticks = ticksOf(statistic).map(({ at, text }) => {
    const tick = el("span", {}, text);
    tick.style.left = `${at * 100}%`;
    return tick;
  });
  const bar = el("div", { class: "legend-scale" }, el("div", { class: "legend-bar is-sequential" }), el("div", { class: "legend-ticks" }, ...ticks));
  return el("div", {}, el("span", { class: "legend-name" }, statistic.title), bar);
}

/** @param {number} state */
function stateItem(state) {
  const { word, help } = STATE_WORDS[state];
  return el("span", { class: "legend-item", title: help }, paintSwatch(state, palette(), 22, 14), ` ${word}`);
}

const blank = () => el("span", { class: "legend-item", title: "Measured only at the steps that have the full set" }, el("span", { class: "swatch" }), " not measured");
const mark = () => el("span", { class: "legend-item" }, el("span", { class: "legend-mark", "aria-hidden": "true" }, "▼"), " column with NaN or Inf");
