// Saved files: names, CSV, links to the server's own files, and the download itself.

import { queryText } from "../../api/fetch.js";
import { el } from "../../format/dom.js";

/** A browser may begin to read only later. Milliseconds. */
const REVOKE_AFTER_MS = 60_000;

/** @param {Blob} content @param {string} name */
export function saveFile(content, name) {
  const address = URL.createObjectURL(content);
  // The page follows the clicks on its own links, and would take this for one of them.
  const anchor = el("a", { href: address, download: name, hidden: true, click: (/** @type {Event} */ event) => event.stopPropagation() });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(address), REVOKE_AFTER_MS);
}

/** What a data URL of base64 holds. @param {string} url */
export const dataBytes = (url) => Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (character) => character.charCodeAt(0));

// Names of saved files, and where the server has every value of what a figure shows.

/** @typedef {{label: string, path: string}} FileLink */

const BITS = ["headroom_bits", "amax", "nan_count", "inf_count"];
/** What a figure shows under a name that no slice has. @type {Record<string, string[]>} */
const MADE_OF = { nonfinite_count: ["nan_count", "inf_count"], amax_change: ["amax"], gradient_norm: ["rms", "numel"], update_ratio: ["rms"] };

/** The figures that are cells of a slice: its axes, and which statistics. docs/api.md, "Slices". @type {Record<string, {axes: string, statistic: string[]}>} */
const SLICES = {
  timeline: { axes: "step,rank", statistic: BITS },
  layers: { axes: "step,tensor", statistic: BITS },
  ranks: { axes: "rank,tensor", statistic: BITS },
  tensor: { axes: "step,tensor", statistic: ["headroom_bits", "*"] },
};

/** The parameters that a figure and a slice understand alike. */
const SHARED = /** @type {const} */ (["rank", "tensor", "kind", "q", "start", "stop"]);

/**
 * Files of every recorded value behind a figure, of its own range, rank, kinds and name filter; none where it is of series or samples.
 * @param {string | number} run @param {string} figure @param {import("../../api/client.js").Query} query what the figure was asked for
 * @returns {FileLink[]}
 */
export function everyValue(run, figure, query) {
  const slice = SLICES[figure];
  if (!slice) return [];
  const asked = Object.fromEntries(SHARED.map((name) => [name, query[name]]));
  const chosen = String(query.statistic ?? "");
  const statistic = [...new Set([...(MADE_OF[chosen] ?? [chosen]), ...slice.statistic].filter(Boolean))];
  const path = (/** @type {string} */ format) => `/api/v1/runs/${encodeURIComponent(run)}/slice${queryText({ axes: slice.axes, statistic, ...asked, format })}`;
  return [
    { label: "CSV of every recorded value", path: path("csv") },
    { label: "Parquet of every recorded value", path: path("parquet") },
  ];
}

/** Of safe characters only, whatever the parts are. @param {...(string | number)} parts */
export function fileName(...parts) {
  const safe = parts.map((part) => String(part).replace(/[^A-Za-z0-9]+/g, "-").replace(/^-+|-+$/g, ""));
  return safe.filter(Boolean).join("-").slice(0, 120);
}

// Rows as CSV (RFC 4180). A name that a spreadsheet would calculate gets a ' before it, as in the server's exports.

/** @typedef {string | number | boolean | null | undefined} Value */
/** @typedef {{columns: readonly string[], rows: Iterable<readonly Value[]>}} Rows */

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

/** Line by line, so that a large figure is never one string. @param {Rows} data @returns {string[]} */
export function csvLines({ columns, rows }) {
  const out = [line(columns)];
  for (const row of rows) out.push(line(row));
  return out;
}
