// The figure of exponents in words: each measured step's median, spread, and what lies below the normal numbers.

import { el, replace } from "../dom.js";
import { count, steps } from "../format.js";
import { onTheme, palette } from "../theme.js";
import { exponentScale } from "./exponent_lane.js";
import { percent, power } from "./exponents_model.js";

/** @typedef {import("./exponents_model.js").ExponentsModel} ExponentsModel */
/** @typedef {import("./exponents_model.js").Measured} Measured */

const COLUMNS = ["Step", "1 % below", "Median", "99 % below", "Subnormal", "Zero"];
const MOST_ROWS = 12;
/** Decades of the colour scale. */
const DECADES = 6;

/** @returns {{element: HTMLElement, update: (model: ExponentsModel) => void, destroy: () => void}} */
export function createExponentTable() {
  const body = el("tbody");
  const head = el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col", class: "number" }, name)));
  const caption = el("caption");
  const table = el("table", { class: "dense tensor-table", "data-testid": "exponent-table" }, caption, el("thead", {}, head), body);
  const bar = el("div", { class: "legend-bar" });
  const paint = () => void (bar.style.background = gradient());
  paint();
  const element = el("div", { hidden: true }, legend(bar), el("div", { class: "panel table-scroll" }, table));
  return {
    element,
    update(model) {
      const shown = model.measured.slice(-MOST_ROWS).reverse();
      element.hidden = shown.length === 0;
      caption.textContent = `Exponents, the last ${count(shown.length)} of ${count(model.measured.length)} that were measured in these steps`;
      replace(body, ...shown.map((one) => row(one, model.meta.steps_per_column)));
    },
    destroy: onTheme(paint),
  };
}

/** @param {Measured} one @param {number} per */
function row({ step, low, median, high, zero, subnormal }, per) {
  const when = per === 1 ? count(step) : steps({ start: step, stop: step + per });
  const cells = [when, below(low), power(median), below(high), percent(subnormal), percent(zero)];
  return el("tr", {}, ...cells.map((text) => el("td", { class: "number" }, text)));
}

/** All of a bin lies below the next power. @param {number} exponent */
const below = (exponent) => power(exponent + 1);

const gradient = () => `linear-gradient(to right, ${exponentScale(palette()).map(([at, colour]) => `${colour} ${100 * at}%`).join(", ")})`;

/** @param {HTMLElement} bar */
function legend(bar) {
  const ticks = [0, 2, 4, DECADES].map((at) => {
    const tick = el("span", {}, at === DECADES ? "all" : `1e${at - DECADES}`);
    tick.style.left = `${(100 * at) / DECADES}%`;
    return tick;
  });
  const scale = el("div", { class: "legend-scale" }, bar, el("div", { class: "legend-ticks" }, ...ticks));
  return el("div", { class: "legend", role: "note" }, scale, el("span", { class: "legend-item" }, "share of the non-zero elements; each full set is drawn until the next"));
}
