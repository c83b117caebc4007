// Rows as CSV (RFC 4180). A name that a spreadsheet would calculate gets a ' before it, as in the server's exports. Pure.

/** @typedef {string | number | boolean | null | undefined} Value */
/** @typedef {{columns: readonly string[], textColumns: readonly string[], rows: Iterable<readonly Value[]>}} Rows `textColumns`: those of the columns that hold text, where others hold numbers; for files that have types */

/** What spreadsheets take for a formula, and the ' itself, so that taking one away gives the name back. */
const CALCULATED = /^[=+\-@\t\r\n']/;

/** @param {Value} value */
function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return typeof value === "number" && !Number.isFinite(value) ? "" : String(value);
  const text = CALCULATED.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {readonly Value[]} values */
const line = (values) => `${values.map(field).join(",")}\r\n`;

/** Line by line, so that a large figure is never one string. @param {Pick<Rows, "columns" | "rows">} data @returns {string[]} */
export function csvLines({ columns, rows }) {
  const out = [line(columns)];
  for (const row of rows) out.push(line(row));
  return out;
}
