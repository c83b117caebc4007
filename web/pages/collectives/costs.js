// What ranks cost one another: by rank and step for the heatmap, and by rank for the table, where equal ranks are one row.
// All of it is what each of the others waits, time on the wall. Pure.

import { decode } from "../../format/typed_array.js";
import { count, plural, rankList } from "../../format/numbers.js";
import { UNKNOWN, isKnown, percent, time } from "../../format/units.js";

/** @typedef {import("../../types.js").RankWaits} RankWaits */
/** @typedef {{rows: import("../../types.js").HeatmapRow[], steps: number[], cost: ArrayLike<number>, wait: ArrayLike<number>, note: string}} Costs flat, row after row; `steps`: of each column the one that stands for it */

/** Ranks that have a row each; of more, those that stand out or are pinned have. */
const FEW = 16;

/** The figure `waits` of a range of steps. @param {import("../../types.js").FigureAnswer} answer @returns {Costs} */
export function costsOf({ figure, meta }) {
  const { x0 = 0, dx = 1, z } = figure.data[0] ?? {};
  const rows = meta.rows ?? [];
  const wait = decode(z);
  const columns = rows.length ? wait.length / rows.length : 0;
  const steps = Array.from({ length: columns }, (_, column) => Math.max(meta.start, Math.min(meta.stop - 1, Math.round(x0 + column * dx + (dx - 1) / 2))));
  return { rows, steps, wait, cost: decode(/** @type {any} */ (meta).delay_s), note: meta.note };
}

/** @param {ArrayLike<number>} values @param {number} at */
const known = (values, at) => (isKnown(values[at]) ? values[at] : null);

/** @param {Costs} costs @returns {import("../../charts/cells/cell_grid.js").Grid} */
export const costGrid = ({ rows, steps, cost }) => ({
  rows: rows.map(({ label }) => label),
  columns: steps.map(count),
  cell: (row, column) => known(cost, row * steps.length + column),
});

/** @param {Costs} costs @param {import("../../charts/cells/cell_grid.js").Spot} spot */
export function costText({ rows, steps, cost, wait }, { row, column }) {
  const at = row * steps.length + column;
  return `${rows[row].label}, step ${count(steps[column])}: cost each of the others ${time(known(cost, at))}, waited ${time(known(wait, at))} itself`;
}

/** @typedef {{key: string, ranks: number[], last: string, cost: string, wait: string, first: RankWaits}} RankRow */

/** Rows of the table: of few ranks equal ones are one row; of many those that do not stand out are, with median and spread. @param {readonly RankWaits[]} all @param {number | null} pin @returns {RankRow[]} */
export function rankRows(all, pin) {
  if (all.length <= FEW) return equalRows(all);
  const isOwn = (/** @type {RankWaits} */ row) => Boolean(row.stands_out) || row.rank === pin;
  const others = all.filter((row) => !isOwn(row));
  return [...equalRows(all.filter(isOwn)), ...(others.length ? [othersRow(others)] : [])];
}

/** @param {readonly RankWaits[]} all @returns {RankRow[]} */
function equalRows(all) {
  /** @type {Map<string, RankRow>} */
  const rows = new Map();
  for (const row of all) {
    const texts = { last: percent(row.last_share), cost: time(row.cost_s), wait: row.wait_s === null ? UNKNOWN : time(row.wait_s) };
    const same = rows.get(JSON.stringify(texts));
    if (same) same.ranks.push(row.rank);
    else rows.set(JSON.stringify(texts), { key: String(row.rank), ranks: [row.rank], ...texts, first: row });
  }
  return [...rows.values()];
}

/** @param {readonly RankWaits[]} others @returns {RankRow} */
function othersRow(others) {
  const spread = (/** @type {"last_share" | "cost_s" | "wait_s"} */ name, /** @type {(value: number | null) => string} */ text) => {
    const values = others.map((row) => row[name]).filter(isKnown).sort((a, b) => a - b);
    const at = (/** @type {number} */ share) => text(values[Math.round(share * (values.length - 1))] ?? null);
    return { median: values[values.length >> 1] ?? null, text: at(0.05) === at(0.95) ? at(0.5) : `${at(0.5)} (5-95 %: ${at(0.05)} to ${at(0.95)})` };
  };
  const [last, cost, wait] = [spread("last_share", percent), spread("cost_s", time), spread("wait_s", time)];
  const first = { ...others[0], last_share: last.median, cost_s: cost.median, wait_s: wait.median };
  return { key: "others", ranks: others.map(({ rank }) => rank), last: last.text, cost: cost.text, wait: wait.text, first };
}

/** @param {RankRow} row */
export const rowText = ({ key, ranks }) => (key === "others" ? `${plural(ranks.length, "other")}: median` : rankList(ranks));

/** Groups whose collectives took the same are one row. @template {{group: string, ranks: number}} R @param {readonly R[]} rows @returns {(R & {groups: string[]})[]} */
export function equalGroups(rows) {
  /** @type {Map<string, R & {groups: string[]}>} */
  const merged = new Map();
  for (const row of rows) {
    const key = JSON.stringify({ ...row, group: "", group_hash: "" }, (_, value) => (typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(3)) : value));
    const same = merged.get(key);
    if (same) same.groups.push(row.group);
    else merged.set(key, { ...row, groups: [row.group] });
  }
  return [...merged.values()];
}
