// A table that is sorted by a click on a column's name. The order is in the address, so it stays while the run goes on.

import { columnKey, orderOf, withOrder } from "../../api/url_state.js";
import { el } from "../../format/dom.js";
import { reuseRows } from "../../format/reuse_rows.js";

/**
 * @template R
 * @typedef {object} Column
 * @property {string} name
 * @property {string} [key] what the address calls it, where its name is not always the same
 * @property {(row: R) => number | string | null} [by] what it is sorted by; unknown comes last, either way
 * @property {(row: R) => import("../../format/dom.js").Child} show
 * @property {boolean} [isNumber]
 * @property {string} [help]
 */

/**
 * Rows in order. Pure.
 * @template R
 * @param {readonly R[]} rows @param {(row: R) => number | string | null} by @param {boolean} isDown
 */
export function sorted(rows, by, isDown) {
  const way = isDown ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [by(one), by(other)];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    if (typeof a === "number" && typeof b === "number") return way * (a - b);
    return way * String(a).localeCompare(String(b), "en", { numeric: true });
  });
}

/**
 * A key of its own for each row: what its first column has, and which of those that have the same it is. Pure.
 * @template R
 * @param {readonly R[]} rows @param {(row: R) => number | string | null} by
 */
export function keysOf(rows, by) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  return rows.map((row) => {
    const name = String(by(row));
    const nth = seen.get(name) ?? 0;
    seen.set(name, nth + 1);
    return `${nth} ${name}`;
  });
}

/** @param {Column<any>} column */
const keyOf = ({ key, name }) => key ?? columnKey(name);

/**
 * A row that is not drawn anew keeps its element: what `show` gives holds links, and nothing that listens with the row.
 * @template R
 * @param {Pick<import("../../types.js").PageContext, "state" | "setState" | "onState">} ctx @param {readonly Column<R>[]} columns
 * @param {{caption: string, name: string, sortBy?: string, most?: number}} options name: of its own on its page; sortBy: a column's name, falling; else as given
 */
export function createSortedTable(ctx, columns, { caption, name, sortBy = "", most = Infinity }) {
  const usual = { column: columnKey(sortBy), isDown: true };
  const body = el("tbody");
  const more = el("p", { class: "muted table-more", hidden: true });
  const heads = columns.map((column) => head(column));
  const table = el("table", { class: "dense sorted-table", "data-testid": name }, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...heads.map(({ cell }) => cell))), body);
  const element = el("div", { class: "panel table-scroll", hidden: true }, table, more);
  /** @type {readonly R[]} */
  let rows = [];
  let shown = "";

  /** @param {Column<R>} column */
  function head(column) {
    const button = column.by ? el("button", { type: "button", class: "sort", click: () => choose(column), title: column.help ?? null }, column.name) : column.name;
    return { column, cell: el("th", { scope: "col", class: column.isNumber ? "number" : null }, button) };
  }

  /** @param {Column<R>} column */
  function choose(column) {
    const next = after(order(), column);
    const isUsual = next.column === usual.column && next.isDown === usual.isDown;
    ctx.setState({ orders: withOrder(ctx.state.orders, name, isUsual ? null : next) });
  }

  /** The other way round, and after that as the rows were given, where that is an order of its own. @param {typeof usual} now @param {Column<R>} column */
  function after(now, column) {
    const first = { column: keyOf(column), isDown: Boolean(column.isNumber) };
    if (now.column !== first.column) return first;
    if (now.isDown === first.isDown || sortBy) return { ...first, isDown: !now.isDown };
    return usual;
  }

  /** What the address asks for, if that is a column here to sort by. */
  function order() {
    const asked = orderOf(ctx.state.orders, name);
    return asked && columns.some((column) => column.by && keyOf(column) === asked.column) ? asked : usual;
  }

  function draw() {
    const { column: key, isDown } = order();
    const by = columns.find((column) => keyOf(column) === key)?.by;
    for (const { column, cell } of heads) {
      if (keyOf(column) === key) cell.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    const now = JSON.stringify([rows, key, isDown]);
    if (now === shown) return; // a live run does not redraw what stays the same
    shown = now;
    const all = by ? sorted(rows, by, isDown) : rows;
    const first = all.slice(0, most);
    const keys = keysOf(first, columns[0].by ?? (() => ""));
    reuseRows(body, first.map((row, i) => el("tr", { "data-key": keys[i] }, ...columns.map((column) => el("td", { class: column.isNumber ? "number" : null }, column.show(row))))));
    more.hidden = all.length <= most;
    more.textContent = `${most} of ${all.length} rows; sort by another column to see others first.`;
  }

  ctx.onState(draw);
  return {
    element,
    /** @param {readonly R[]} next */
    update(next) {
      rows = next;
      element.hidden = next.length === 0;
      draw();
    },
  };
}
