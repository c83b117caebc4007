// The menu of a chart, which saves it as PNG, SVG, CSV or Parquet; and its table, made when it is opened.

import { el, replace } from "../../format/dom.js";
import { csvLines, saveFile } from "./files.js";

/**
 * @typedef {object} Figure One chart, as its menu sees it.
 * @property {() => string} fileName without its end
 * @property {(format: "png" | "svg") => Promise<Blob>} picture
 * @property {() => import("./files.js").Rows | null} rows every value that is shown; null: there is no way to tell them
 * @property {() => readonly import("./files.js").FileLink[]} files the server's
 * @property {string} noFiles why there are none
 */

let menus = 0;

/** The same on every chart, whose heading describes it. */
const NAME = "Save or show as a table";

/** @param {Figure} figure @param {{isOpen: () => boolean, toggle: () => void}} table @param {HTMLElement} heading of the chart */
export function createFigureMenu(figure, table, heading) {
  const id = `figure-choices-${(menus += 1)}`;
  heading.id ||= `${id}-of`;
  const button = el("button", { type: "button", class: "quiet figure-menu-button", "aria-label": NAME, "aria-describedby": heading.id, "aria-expanded": "false", "aria-controls": id, click: () => (choices.hidden ? open() : close()) }, "Save");
  const choices = el("div", { class: "figure-choices", id, role: "group", "aria-label": NAME, "aria-describedby": heading.id, hidden: true });
  const said = el("p", { class: "figure-said", role: "status" });
  const element = el("div", { class: "figure-menu", hidden: true, keydown: key, focusout: left }, button, choices);

  function open() {
    button.setAttribute("aria-expanded", "true");
    said.textContent = "";
    replace(choices, ...items(), said);
    choices.hidden = false;
    document.addEventListener("pointerdown", outside, true);
    choices.querySelector("button")?.focus({ preventScroll: true });
  }

  function close() {
    button.setAttribute("aria-expanded", "false");
    choices.hidden = true;
    document.removeEventListener("pointerdown", outside, true);
  }

  function items() {
    const links = figure.files();
    const choice = (/** @type {string} */ text, /** @type {() => unknown} */ act) => el("button", { type: "button", class: "figure-choice", click: () => act() }, text);
    return [
      choice("PNG picture", () => save("png", () => figure.picture("png"))),
      choice("SVG picture", () => save("svg", () => figure.picture("svg"))),
      choice("CSV of what is shown", () => save("csv", () => new Blob(csvLines(shown()), { type: "text/csv;charset=utf-8" }))),
      choice("Parquet of what is shown", () => save("parquet", parquet)),
      ...links.map(({ label, path }) => el("a", { class: "figure-choice", href: path, download: true, click: () => close() }, label)),
      links.length ? null : el("p", { class: "figure-note" }, figure.noFiles),
      choice(table.isOpen() ? "Hide the table" : "Show as a table", showTable),
    ];
  }

  /** @param {string} format the end of the file's name @param {() => Blob | Promise<Blob>} make */
  async function save(format, make) {
    said.textContent = "Making the file…";
    try {
      const name = figure.fileName(); // before anything else may be shown
      saveFile(await make(), `${name}.${format}`);
      finish();
    } catch (error) {
      said.textContent = `Not saved: ${error instanceof Error ? error.message : String(error)}`;
    }
  }

  function shown() {
    const rows = figure.rows();
    if (!rows) throw new Error("nothing is shown.");
    return rows;
  }

  /** What writes it is fetched when it is first asked for. */
  async function parquet() {
    const rows = shown();
    const { parquetParts } = await import("./parquet.js");
    return new Blob(parquetParts(rows), { type: "application/vnd.apache.parquet" });
  }

  function showTable() {
    table.toggle();
    finish();
  }

  /** Closed, with the focus where it came from. */
  function finish() {
    const wasInside = choices.contains(document.activeElement);
    close();
    if (wasInside) button.focus({ preventScroll: true });
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (event.key !== "Escape" || choices.hidden) return;
    event.stopPropagation();
    close();
    button.focus();
  }

  /** @param {PointerEvent} event */
  function outside(event) {
    if (!(event.target instanceof Node && element.contains(event.target))) close();
  }

  /** @param {FocusEvent} event */
  function left(event) {
    if (event.relatedTarget instanceof Node && !element.contains(event.relatedTarget)) close();
  }

  return {
    element,
    /** Only where something is drawn. @param {boolean} isDrawn */
    update(isDrawn) {
      element.hidden = !isDrawn;
    },
    destroy: close,
  };
}

// A chart as a table, for who cannot see it or wants the numbers. Nothing of it is made until it is opened.

/** @typedef {import("./rows.js").Summary} Summary */

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
