// The order that a reader chose for a table, as the address has it: "overflow-table.was-first.down". Pure.

/** @typedef {{column: string, isDown: boolean}} Order column: its key */

const WRITTEN = /^([a-z][a-z0-9-]{0,39})\.([a-z0-9-]{1,60})\.(up|down)$/;

/** What an address calls a column. @param {string} name */
export const columnKey = (name) => name.toLowerCase().replace(/[^a-z0-9]+/g, "-");

/** @param {string} text */
const tableOf = (text) => WRITTEN.exec(text)?.[1];

/** Those that can be read, one of a table, in one order. @param {readonly string[]} texts @returns {string[]} */
export function soundOrders(texts) {
  const tables = texts.map(tableOf);
  return texts.filter((_, i) => tables[i] && tables.indexOf(tables[i]) === i).sort();
}

/** What is asked of a table; null: nothing, so its usual order. @param {readonly string[]} orders @param {string} table @returns {Order | null} */
export function orderOf(orders, table) {
  const [, , column, way] = WRITTEN.exec(orders.find((text) => tableOf(text) === table) ?? "") ?? [];
  return column ? { column, isDown: way === "down" } : null;
}

/** With another order of one table; null: its usual one, which no address names. @param {readonly string[]} orders @param {string} table @param {Order | null} order */
export function withOrder(orders, table, order) {
  const others = orders.filter((text) => tableOf(text) !== table);
  return soundOrders(order ? [...others, `${table}.${order.column}.${order.isDown ? "down" : "up"}`] : others);
}
