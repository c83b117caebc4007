// The headroom scale and the look of every state, for heatmaps. One legend, so that the lanes keep their edges.

import { el, replace } from "../dom.js";
import { SCALE_BITS, SCALE_TOP, STATE, STATE_WORDS } from "../headroom.js";
import { paintSwatch } from "../state_canvas.js";
import { onTheme, palette } from "../theme.js";

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
