// Where each rank of the map lies, and what is said of it. A row is a node and a column a local rank, or both are axes of
// the mesh; many rows stand in several columns of rows. Pure.

import { count, plural } from "../../format/numbers.js";
import { UNKNOWN, isKnown, quantity } from "../../format/units.js";
import { NODE, placesOf } from "./mesh_places.js";

/** @typedef {import("../../types.js").RankMap} RankMap */
/** @typedef {import("../../charts/cells/cell_grid.js").Area} Area */
/** @typedef {import("./mesh_places.js").Placed} Placed */
/** @typedef {{rank: number, host: string | null, localRank: number, value: number | null, place: string, count: number}} RankCell `count`: how many ranks it stands for, of which `rank` is the worst; `place`: on the mesh */
/** @typedef {{host: string | null, cells: RankCell[]}} NodeRow `host`: what the row is called; null: ranks that have not reported */
/** @typedef {{rows: string, columns: string}} Arrangement axes of the mesh, or "node"; "": rows are nodes, columns ranks */
/** @typedef {{row: number, column: number}} RankSpot */
/** @typedef {{perBlock: number, blocks: number, cellWidth: number, cellHeight: number, label: number, blockWidth: number, height: number}} RankLayout pixels */

/** Ranks of a node in one row; a node with more has several. */
const MOST_COLUMNS = 16;
/** Pixels: all rows at most; a cell's height and width, least and most; a block's names and the gap after it. */
const MOST_HEIGHT = 96;
const HEIGHT = { least: 6, most: 16 };
const WIDTH = { least: 3, most: 34 };
const LABEL = 58;
const GAP = 10;
export const TOP = 3;

/** What is known of the map before the server has answered: where its ranks are. @param {Pick<import("../../types.js").Run, "ranks" | "missing_ranks">} run @returns {Pick<RankMap, "nodes" | "worst">} */
export function nodesOf({ ranks, missing_ranks: missing }) {
  const hosts = groupedBy(ranks, ({ host }) => /** @type {string | null} */ (host));
  const nodes = [...hosts].map(([host, of]) => ({ host, local_ranks: of.map((one) => one.local_rank), ranks: of.map(({ rank }) => rank), values: of.map(() => null) }));
  const away = { host: null, local_ranks: missing.map(() => 0), ranks: missing, values: missing.map(() => null) };
  return { worst: "most", nodes: missing.length ? [...nodes, away] : nodes };
}

/** The rows to draw. @param {Pick<RankMap, "nodes" | "worst">} map @param {Placed} run @param {Arrangement} by @returns {NodeRow[]} */
export function rowsOf(map, run, by) {
  const coordinates = new Map(run.ranks.map((one) => [one.rank, one.coordinates ?? {}]));
  const places = placesOf(run);
  const cells = map.nodes.flatMap(({ host, local_ranks: local, ranks, values }) => ranks.map((rank, i) => ({ rank, host, localRank: local[i], value: values[i], place: places.get(rank) ?? "", count: 1 })));
  if (!by.rows && !by.columns) return wrapped(groupedBy(cells, ({ host }) => host));
  const missing = cells.filter(({ host }) => host === null);
  /** @param {RankCell} cell @param {string} axis */
  const along = ({ rank, host }, axis) => (axis === NODE ? host : coordinates.get(rank)?.[axis]);
  const rows = by.rows || NODE;
  const named = groupedBy(cells.filter(({ host }) => host !== null), (cell) => along(cell, rows) ?? null);
  const known = [...named].filter(([place]) => place !== null).sort(([a], [b]) => (rows === NODE ? 0 : Number(a) - Number(b)));
  const shown = known.map(([place, of]) => /** @type {const} */ ([rows === NODE ? String(place) : `${rows} ${place}`, by.columns ? folded(of, (cell) => along(cell, by.columns), map) : [...of].sort((a, b) => a.rank - b.rank)]));
  const unknown = named.get(null) ?? [];
  return [...(by.columns ? shown.map(([host, of]) => ({ host, cells: of })) : wrapped(shown)), ...wrapped([["unknown", unknown], [null, missing]])];
}

/** @template T, K @param {readonly T[]} cells @param {(cell: T) => K} key @returns {Map<K, T[]>} */
function groupedBy(cells, key) {
  /** @type {Map<K, T[]>} */
  const groups = new Map();
  for (const cell of cells) {
    const group = groups.get(key(cell));
    if (group) group.push(cell);
    else groups.set(key(cell), [cell]);
  }
  return groups;
}

/** No row is longer than fits. @param {Iterable<readonly [string | null, readonly RankCell[]]>} rows @returns {NodeRow[]} */
function wrapped(rows) {
  return [...rows].flatMap(([host, cells]) => {
    const parts = Math.ceil(cells.length / MOST_COLUMNS);
    return Array.from({ length: parts }, (_, i) => ({ host, cells: cells.slice(i * MOST_COLUMNS, (i + 1) * MOST_COLUMNS) }));
  });
}

/** A cell for each place along an axis, in its order: the worst of the ranks there. @param {readonly RankCell[]} cells @param {(cell: RankCell) => string | number | null | undefined} key @param {Pick<RankMap, "worst">} map @returns {RankCell[]} */
function folded(cells, key, map) {
  const groups = [...groupedBy(cells, key)].sort(([a], [b]) => (typeof a === "number" && typeof b === "number" ? a - b : 0));
  return groups.map(([, of]) => ({ ...of.reduce((worst, cell) => (isWorse(cell, worst, map) ? cell : worst)), count: of.length }));
}

/** What is not known is never the worst. @param {RankCell} cell @param {RankCell} than @param {Pick<RankMap, "worst">} map */
function isWorse(cell, than, { worst }) {
  if (!isKnown(cell.value) || !isKnown(than.value)) return isKnown(cell.value);
  return worst === "most" ? cell.value > than.value : cell.value < than.value;
}

/** How rows stand in a picture so wide: as few columns of rows as its height allows. @param {readonly NodeRow[]} rows @param {number} width @returns {RankLayout} */
export function layoutOf(rows, width) {
  const columns = rows.reduce((most, { cells }) => Math.max(most, cells.length), 1);
  const room = width - 2 * GAP;
  let layout = arranged(rows.length, columns, 1, room);
  for (let blocks = 2; layout.height > MOST_HEIGHT && blocks <= rows.length; blocks += 1) {
    const next = arranged(rows.length, columns, blocks, room);
    if (next.cellWidth < WIDTH.least) break;
    layout = next;
  }
  return layout;
}

/** @param {number} rows @param {number} columns @param {number} blocks @param {number} room @returns {RankLayout} */
function arranged(rows, columns, blocks, room) {
  const perBlock = Math.ceil(rows / blocks);
  const share = room / blocks - GAP;
  const label = share - LABEL >= columns * 6 ? LABEL : 0;
  const cellWidth = Math.min(WIDTH.most, Math.floor((share - label) / columns));
  // Rows that do not fit at their least height make the picture higher: to hide one would be worse.
  const cellHeight = Math.max(HEIGHT.least, Math.min(HEIGHT.most, Math.floor(MOST_HEIGHT / perBlock)));
  return { perBlock, blocks: Math.ceil(rows / perBlock), cellWidth, cellHeight, label, blockWidth: label + columns * Math.max(1, cellWidth) + GAP, height: perBlock * cellHeight };
}

/** @param {RankSpot} spot @param {RankLayout} layout @returns {Area} */
export function boxOf({ row, column }, { perBlock, cellWidth, cellHeight, label, blockWidth }) {
  const left = GAP + Math.floor(row / perBlock) * blockWidth + label + column * cellWidth;
  return { left, top: TOP + (row % perBlock) * cellHeight, width: Math.max(2, cellWidth - (cellWidth > 4 ? 1 : 0)), height: cellHeight - 1 };
}

/** @param {readonly NodeRow[]} rows @param {number} x @param {number} y @param {RankLayout} layout @returns {RankSpot | null} */
export function spotAt(rows, x, y, { perBlock, cellWidth, cellHeight, label, blockWidth }) {
  const block = Math.floor((x - GAP) / blockWidth);
  const line = Math.floor((y - TOP) / cellHeight);
  const column = Math.floor((x - GAP - block * blockWidth - label) / cellWidth);
  const row = block * perBlock + line;
  return block >= 0 && line >= 0 && line < perBlock && rows[row]?.cells[column] ? { row, column } : null;
}

/** @type {Record<string, [number, number]>} */
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** A cell further by an arrow key: the next rank across, the next node down. The first arrow enters at the worst rank. @param {readonly NodeRow[]} rows @param {RankSpot | null} spot @param {string} key @param {RankSpot | null} first @returns {RankSpot | null} */
export function movedSpot(rows, spot, key, first) {
  const way = MOVES[key];
  if (!way || !rows.length) return null;
  if (!spot) return first ?? { row: 0, column: 0 };
  const row = Math.max(0, Math.min(rows.length - 1, spot.row + way[0]));
  return { row, column: Math.max(0, Math.min(rows[row].cells.length - 1, spot.column + way[1])) };
}

/** @param {readonly NodeRow[]} rows @param {number | null} rank @returns {RankSpot | null} */
export function spotOf(rows, rank) {
  for (const [row, { cells }] of rows.entries()) {
    const column = cells.findIndex((cell) => cell.rank === rank);
    if (column >= 0) return { row, column };
  }
  return null;
}

/** Where a value lies, 0 calm to 1 hot. @param {number} value @param {RankMap["scale"]} scale */
export function heatOf(value, { calm, hot, is_log: isLog }) {
  if (isLog) return value > calm ? Math.min(1, Math.log(value / calm) / Math.log(hot / calm)) : 0;
  return hot === calm ? 0 : Math.max(0, Math.min(1, (value - calm) / (hot - calm)));
}

/** @param {Pick<RankMap, "unit">} map @param {number | null} value */
export function valueText({ unit }, value) {
  if (!isKnown(value)) return UNKNOWN;
  return unit === "_bits" ? `${value.toFixed(1)} bits` : quantity(unit, value);
}

/** @param {RankMap} map @param {RankCell} cell */
export function cellText(map, { rank, host, localRank, value, place, count: ranks }) {
  if (host === null) return `rank ${rank}: has not reported`;
  const odd = map.outliers.some((one) => one.rank === rank) ? ", stands out" : "";
  const where = [host, place || `local rank ${localRank}`].filter(Boolean).join(", ");
  const of = ranks > 1 ? `worst of ${ranks} ranks: ` : "";
  return `${of}rank ${rank}, ${where}: ${map.title.toLowerCase()} ${isKnown(value) ? valueText(map, value) : "not known"}${odd}`;
}

/** All who do not stand out, as one. @param {RankMap} map */
export function othersText(map) {
  const { count: n, median, p5, p95 } = map.others;
  if (!n) return "Not known of any rank";
  const unknown = map.rank_count - map.known_count;
  const missing = map.nodes.reduce((sum, { host, ranks }) => sum + (host === null ? ranks.length : 0), 0);
  const [low, high] = [valueText(map, p5), valueText(map, p95)];
  const spread = low === high ? `all ${valueText(map, median)}` : `median ${valueText(map, median)}, 5-95 % ${low} to ${high}`;
  const parts = [
    `${map.outliers.length ? plural(n, "other") : plural(n, "rank")}: ${spread}`,
    map.outlier_count > map.outliers.length ? `${count(map.outlier_count - map.outliers.length)} more stand out` : "",
    unknown ? `${count(unknown)} not known` : "",
    missing ? `${count(missing)} not reported` : "",
  ];
  return parts.filter(Boolean).join("; ");
}

/** One line for who cannot see the map. @param {RankMap} map */
export function mapSummary(map) {
  if (!map.others.count && !map.outliers.length) return `${map.title}: not known of any rank.`;
  const odd = map.outliers.map((one) => `rank ${one.rank} ${valueText(map, one.value)}`).join(", ");
  return `${map.title}: ${odd ? `${odd} stand${map.outliers.length === 1 ? "s" : ""} out; ` : "no rank stands out; "}${othersText(map)}.`;
}
