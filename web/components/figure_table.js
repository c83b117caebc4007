// A chart as a table, for who cannot see it or wants the numbers. Nothing of it is made until it is opened.

import { el, replace } from "../dom.js";

/** @typedef {import("../figure_summary.js").Summary} Summary */

/** @param {() => string} title @param {() => Summary | null} summary of what is shown now */
export function createFigureTable(title, summary) {
  const element = el("div", { class: "figure-table", role: "region", tabindex: 0, hidden: true });
  let shown = "";

  function draw() {
    const found = summary();
    const now = JSON.stringify([title(), found]);
    if (now === shown) return; // a live run does not redraw what stays the same
    shown = now;
    element.setAttribute("aria-label", `${title()}, as a table`);
    replace(element, ...(found ? parts(found, title()) : [el("p", { class: "figure-note" }, "Nothing is shown that could stand in a table.")]));
  }

  return {
    element,
    isOpen: () => !element.hidden,
    toggle() {
      element.hidden = !element.hidden;
      if (element.hidden) replace(element);
      shown = "";
      if (!element.hidden) draw();
    },
    /** After new data. */
    update() {
      if (!element.hidden) draw();
    },
  };
}

/** @param {Summary} summary @param {string} title */
function parts({ columns, rows, note }, title) {
  const head = el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name)));
  const body = rows.map(([name, ...cells]) => el("tr", {}, el("th", { scope: "row" }, name), ...cells.map((text) => el("td", {}, text))));
  const table = el("table", { class: "dense" }, el("caption", {}, title), el("thead", {}, head), el("tbody", {}, ...body));
  return [table, note ? el("p", { class: "figure-note" }, note) : null];
}
