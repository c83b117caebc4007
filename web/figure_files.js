// Names of saved files, and where the server has every value of what a figure shows. Pure.

import { queryText } from "./api.js";

/** @typedef {{label: string, path: string}} FileLink */

const BITS = ["headroom_bits", "amax", "nan_count", "inf_count"];
/** What a figure shows under a name that no slice has. @type {Record<string, string[]>} */
const MADE_OF = { nonfinite_count: ["nan_count", "inf_count"] };

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
 * @param {string | number} run @param {string} figure @param {import("./api.js").Query} query what the figure was asked for
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
