// The panel of a chart: its title, note and read-out, its menu, which saves it as PNG or CSV, and its table, made when it is
// opened.

import { el, replace } from "../../format/dom.js";
import { createMenu, menuChoice } from "./menu.js";
import { csvLines, saveFile } from "./files.js";

/**
 * @typedef {object} Figure One chart, as its menu sees it.
 * @property {() => string} fileName without its end
 * @property {() => Promise<Blob>} picture a PNG
 * @property {() => import("./files.js").Rows | null} rows every value that is shown; null: they cannot be listed
 * @property {() => readonly import("./files.js").FileLink[]} files the server's
 * @property {string} noFiles why there are none
 */

/**
 * Every chart's panel; what is drawn goes into its element before the table.
 * @param {string} title @param {Figure} figure @param {() => Summary | null} summary of what is shown now
 */
export function createFigurePanel(title, figure, summary) {
  const heading = el("h2", {}, title);
  const note = el("span", { class: "lane-note" });
  const readout = el("output", { class: "lane-readout" });
  const table = createFigureTable(() => heading.textContent || title, summary);
  const menu = createFigureMenu(figure, table, heading);
  const header = el("header", {}, heading, note, readout, menu.element);
  const element = el("section", { class: "panel lane" }, header, table.element);
  return {
    element,
    header,
    heading,
    note,
    readout,
    /** @param {...import("../../format/dom.js").Child} children what is drawn, and what belongs to it */
    fill: (...children) => table.element.before(...children.filter((child) => child instanceof Node)),
    /** After new data. @param {boolean} isDrawn whether there is something to save */
    update(isDrawn) {
      menu.update(isDrawn);
      table.update();
    },
    destroy: menu.destroy,
  };
}

/** The same on every chart, whose heading describes it. */
const NAME = "Save or show as a table";

/** @param {Figure} figure @param {{isOpen: () => boolean, toggle: () => void}} table @param {HTMLElement} heading of the chart */
function createFigureMenu(figure, table, heading) {
  const status = el("p", { class: "figure-status", role: "status" });
  const menu = createMenu({ text: "Save", name: NAME, kind: "figure", of: heading }, items);
  menu.element.hidden = true;

  function items() {
    status.textContent = "";
    const links = figure.files();
    return [
      menuChoice("PNG picture", () => save("png", figure.picture)),
      menuChoice("CSV of what is shown", () => save("csv", () => new Blob(csvLines(shown()), { type: "text/csv;charset=utf-8" }))),
      ...links.map(({ label, path }) => el("a", { class: "figure-choice", href: path, download: true, click: () => menu.close() }, label)),
      links.length ? null : el("p", { class: "figure-note" }, figure.noFiles),
      menuChoice(table.isOpen() ? "Hide the table" : "Show as a table", showTable),
      status,
    ];
  }

  /** @param {string} format the end of the file's name @param {() => Blob | Promise<Blob>} make */
  async function save(format, make) {
    status.textContent = "Making the file…";
    try {
      const name = figure.fileName(); // before anything else may be shown
      saveFile(await make(), `${name}.${format}`);
      menu.finish();
    } catch (error) {
      status.textContent = `Not saved: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  function shown() {
    const rows = figure.rows();
    if (!rows) throw new Error("nothing is shown.");
    return rows;
  }

  function showTable() {
    table.toggle();
    menu.finish();
  }

  return {
    element: menu.element,
    /** Only where something is drawn. @param {boolean} isDrawn */
    update(isDrawn) {
      menu.element.hidden = !isDrawn;
    },
    destroy: menu.close,
  };
}

// A chart as a table, for who cannot see it or wants the numbers. Nothing of it is made until it is opened.

/** @typedef {import("./rows.js").Summary} Summary */

/** @param {() => string} title @param {() => Summary | null} summary of what is shown now */
function createFigureTable(title, summary) {
  const element = el("div", { class: "figure-table", role: "region", tabindex: 0, hidden: true });
  let shown = "";

  function draw() {
    const current = summary();
    const now = JSON.stringify([title(), current]);
    if (now === shown) return; // a live run does not redraw what stays the same
    shown = now;
    element.setAttribute("aria-label", `${title()}, as a table`);
    replace(element, ...(current ? parts(current, title()) : [el("p", { class: "figure-note" }, "Nothing is shown that a table could have.")]));
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
