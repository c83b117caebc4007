// The map of ranks: every rank as a cell in its node's row, coloured by a measure that the reader chooses. Those that
// stand out have a mark and a name; a click or Enter pins a rank for all pages.

import * as api from "../../api/client.js";
import { ApiError } from "../../api/fetch.js";
import { throttle } from "../../api/throttle.js";
import { shownRange } from "../../api/url_state.js";
import { LEGEND_HEIGHT, paintItems, paintName } from "../../charts/cells/cell_painting.js";
import { paintState } from "../../charts/cells/patterns.js";
import { createPicture, pictureOf } from "../../charts/cells/picture.js";
import { SCALES, colourAt, gradient } from "../../charts/colours.js";
import { areaItem } from "../../charts/legend.js";
import { STATE } from "../../charts/statistics.js";
import { MOST_ROWS } from "../../charts/saving/rows.js";
import { el, replace } from "../../format/dom.js";
import { clip, count, shorten } from "../../format/numbers.js";
import { isKnown } from "../../format/units.js";
import { NODE, axesOf, choicesOf, known, rankName } from "./mesh_places.js";
import { TOP, boxOf, cellText, heatOf, layoutOf, mapSummary, movedSpot, nodesOf, othersText, rowsOf, spotAt, spotOf, valueText } from "./rank_layout.js";

/** @typedef {import("../../types.js").RankMap} RankMap */
/** @typedef {import("./rank_layout.js").RankSpot} RankSpot */
/** @typedef {{map: RankMap, rows: import("./rank_layout.js").NodeRow[], pin: number | null}} Model */
/** @typedef {import("../../charts/cells/picture.js").Size} Size */
/** @typedef {import("../../charts/theme.js").Palette} Palette */

/** Another look is worth it after so long. Milliseconds. */
const LEAST_MS = 3000;
/** Pixels that a letter of a node's name takes, and between two names. */
const LETTER = 6.2;
const NAME_GAP = 12;

/** @param {import("../../types.js").PageContext} ctx @param {string} usual the measure that is shown first; "": cost where it is known, else the step time */
export function createRankMap(ctx, usual) {
  const run = ctx.params.id;
  const choice = el("select", { "aria-label": "Colour ranks by", change: () => ctx.setState({ measure: choice.value }) });
  const names = el("div", { class: "rank-names" });
  const arrangement = createArrangement(ctx);
  const others = el("span", { class: "muted" });
  const scale = el("span", { class: "rank-scale" });
  const legend = el("div", { class: "legend" }, scale, areaItem("unknown", "not known"));
  const foot = el("div", { class: "rank-foot" }, el("label", { class: "field" }, "Colour by ", choice), arrangement.element, names, others, legend);
  const picture = createPicture(
    {
      name: "rank-map",
      title: "Ranks",
      height: (/** @type {Model} */ { rows }, width) => layoutOf(rows, width).height + 2 * TOP,
      paint,
      spotAt: ({ rows }, x, y, { width }) => spotAt(rows, x, y, layoutOf(rows, width)),
      moved: ({ rows, map, pin }, spot, key) => movedSpot(rows, spot, key, spotOf(rows, pin ?? map.outliers[0]?.rank ?? null)),
      has: ({ rows }, { row, column }) => rows[row]?.cells[column] !== undefined,
      boxOf: ({ rows }, spot, { width }) => boxOf(spot, layoutOf(rows, width)),
      readout: ({ map, rows }, { row, column }) => cellText(map, rows[row].cells[column]),
      pick: ({ rows }, { row, column }) => pin(rows[row].cells[column].rank),
      keys: "Arrow keys read out the ranks, Enter pins one on all pages.",
      rows: allRows,
      summary: oddRows,
      legend: { height: LEGEND_HEIGHT, paint: (pen, palette) => paintItems(pen, 12, { "not known": (box) => paintState(pen, box, STATE.notObserved, palette) }, palette) },
    },
    foot,
  );
  const ask = throttle((/** @type {import("../../api/fetch.js").Query} */ query, /** @type {AbortSignal} */ signal) => api.rankMap(run, query, signal), (query) => JSON.stringify([query.measure, ctx.state.start, ctx.state.stop, ctx.state.last]), LEAST_MS);
  let drawn = "";
  picture.element.classList.add("rank-map");
  picture.element.hidden = true;

  /** @param {import("../../types.js").Run} about */
  const arrangementOf = (about) => ({ rows: known(about, ctx.state.rows), columns: known(about, ctx.state.columns) });

  /** Once more: let go of. @param {number} rank */
  const pin = (rank) => ctx.setState({ pin: ctx.state.pin === rank ? null : rank });

  /** @param {RankMap} map @param {import("../../types.js").Run} about */
  function show(map, about) {
    const by = arrangementOf(about);
    const now = JSON.stringify([map, ctx.state.pin, by, about.mesh]);
    if (now === drawn) return;
    drawn = now;
    picture.element.hidden = map.rank_count < 2;
    fillChoice(choice, map);
    arrangement.update(about);
    const focused = names.querySelector(":focus")?.getAttribute("data-key");
    replace(names, ...nameButtons(map, about, ctx.state.pin, pin));
    if (focused) /** @type {HTMLElement | null} */ (names.querySelector(`[data-key="${focused}"]`))?.focus();
    others.textContent = othersText(map);
    replace(scale, ...scaleOf(map));
    const nodes = map.nodes.filter(({ host }) => host !== null).length;
    picture.update({ map, rows: rowsOf(map, about, by), pin: ctx.state.pin }, mapSummary(map), arrangementText(by, nodes), pictureOf(about, map.is_of_steps ? map : null));
  }

  /** Room for it before it is drawn: what stands beneath need not move. @param {import("../../types.js").Run} about */
  function reserve(about) {
    if (drawn || about.ranks.length < 2) return;
    picture.element.hidden = false;
    const rows = rowsOf(nodesOf(about), about, arrangementOf(about));
    picture.reserve((width) => layoutOf(rows, width).height + 2 * TOP);
    arrangement.update(about);
  }

  return {
    element: picture.element,
    reserve,
    /** @param {import("../../types.js").Run} about @param {AbortSignal} signal */
    async update(about, signal) {
      if (about.ranks.length < 2) return void (picture.element.hidden = true);
      reserve(about);
      const { start, stop } = ctx.state.last === null ? ctx.state : shownRange(ctx.state, about);
      try {
        show(await ask({ measure: ctx.state.measure || usual || null, start, stop }, signal), about);
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== 422 || !ctx.state.measure) throw error;
        ctx.notify(`Ranks cannot be coloured by "${clip(ctx.state.measure, 40)}": ${error.message}.`); // of an address that was typed
        ctx.setState({ measure: "" });
      }
    },
    destroy: picture.destroy,
  };
}

/** What rows and columns of the map are, and by what the rows of ranks on the page stand together. @param {import("../../types.js").PageContext} ctx */
function createArrangement(ctx) {
  const selects = /** @type {const} */ ([["rows", "Rows", "node"], ["columns", "Columns", "rank"], ["fold", "Fold ranks by", "nothing"]]).map(([name, title, usual]) => {
    const select = el("select", { "aria-label": title, change: () => ctx.setState({ [name]: select.value }) });
    return { name, usual, select, label: el("label", { class: "field" }, `${title} `, select) };
  });
  const element = el("span", { class: "rank-arrangement" }, ...selects.map(({ label }) => label));
  return {
    element,
    /** @param {import("../../types.js").Run} run */
    update(run) {
      element.hidden = !axesOf(run).length;
      const choices = choicesOf(run);
      for (const { name, usual, select } of selects) {
        const offered = [{ name: "", text: usual }, ...choices.filter((one) => !(name === "rows" && one.name === NODE))];
        if (select.options.length !== offered.length) replace(select, ...offered.map((one) => el("option", { value: one.name }, one.text)));
        const value = known(run, ctx.state[name]);
        if (document.activeElement !== select || select.value !== value) select.value = value;
      }
    },
  };
}

/** @param {HTMLSelectElement} choice @param {RankMap} map */
function fillChoice(choice, { measures, measure }) {
  if (choice.options.length !== measures.length) replace(choice, ...measures.map(({ name, title }) => el("option", { value: name }, title)));
  if (document.activeElement !== choice || choice.value !== measure) choice.value = measure;
}

/** What a row and a column are. @param {import("./rank_layout.js").Arrangement} by @param {number} nodes */
function arrangementText({ rows, columns }, nodes) {
  if (!rows && !columns) return nodes > 1 ? `a row a node, a column a local rank; ${count(nodes)} nodes` : "";
  return columns ? `a row a place along ${rows || NODE}, a column along ${columns}; each cell the worst of its ranks` : `a row a place along ${rows}, a column a rank`;
}

/** Who stands out, and who is pinned, each to be pinned or let go of. @param {RankMap} map @param {import("../../types.js").Run} run @param {number | null} pinned @param {(rank: number) => void} pin */
function nameButtons(map, run, pinned, pin) {
  const cell = map.nodes.flatMap(({ host, ranks, values }) => ranks.map((rank, i) => ({ rank, host, value: values[i] }))).find(({ rank }) => rank === pinned);
  const odd = map.outliers.map(({ rank, host, value }) => ({ rank, host, value, isOdd: true }));
  const all = cell && !odd.some(({ rank }) => rank === pinned) ? [...odd, { ...cell, isOdd: false }] : odd;
  return all.map(({ rank, host, value, isOdd }) => {
    const isPinned = rank === pinned;
    const text = `${isOdd ? "▲ " : ""}${axesOf(run).length ? rankName(run, rank) : `rank ${rank}${host ? ` (${clip(host, 30)})` : ""}`}: ${isKnown(value) ? valueText(map, value) : "not known"}`;
    return el("button", { type: "button", class: "rank-name", "data-odd": isOdd, "data-key": rank, "aria-pressed": String(isPinned), title: isPinned ? "Pinned on all pages; click to let go of it" : "Pin it on all pages", click: () => pin(rank) }, text);
  });
}

/** From calm to as hot as it gets. @param {RankMap} map */
function scaleOf(map) {
  const bar = el("span", { class: "legend-bar", "aria-hidden": "true" });
  bar.style.background = gradient(SCALES.cost);
  return [valueText(map, map.scale.calm), bar, valueText(map, map.scale.hot)];
}

/** @param {CanvasRenderingContext2D} pen @param {Model} model @param {Size} size @param {Palette} palette */
function paint(pen, { map, rows, pin }, { width }, palette) {
  const layout = layoutOf(rows, width);
  const every = Math.ceil(NAME_GAP / layout.cellHeight);
  for (const [row, { host, cells }] of rows.entries()) {
    if (layout.label && (row % layout.perBlock) % every === 0) paintNode(pen, host ?? "missing", boxOf({ row, column: 0 }, layout), layout, palette);
    for (const [column, { value }] of cells.entries()) {
      const box = boxOf({ row, column }, layout);
      if (!isKnown(value)) {
        paintState(pen, box, host === null ? STATE.stale : STATE.notObserved, palette);
        continue;
      }
      pen.fillStyle = colourAt(palette.scales.cost, heatOf(value, map.scale));
      pen.fillRect(box.left, box.top, box.width, box.height);
    }
  }
  for (const { rank } of map.outliers) outline(pen, rows, rank, layout, palette.ink, 2);
  if (pin !== null) outline(pen, rows, pin, layout, palette.accent, 3);
}

/** @param {CanvasRenderingContext2D} pen @param {string} host @param {import("../../charts/cells/cell_grid.js").Area} box of its first cell @param {import("./rank_layout.js").RankLayout} layout @param {Palette} palette */
function paintNode(pen, host, box, layout, palette) {
  if (host) paintName(pen, shorten(host, Math.floor((layout.label - 6) / LETTER)), box.left - 5, box.top + layout.cellHeight / 2, palette);
}

/** @param {CanvasRenderingContext2D} pen @param {Model["rows"]} rows @param {number} rank @param {import("./rank_layout.js").RankLayout} layout @param {string} colour @param {number} width */
function outline(pen, rows, rank, layout, colour, width) {
  const spot = spotOf(rows, rank);
  if (!spot) return;
  const { left, top, width: wide, height } = boxOf(spot, layout);
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.strokeRect(left - 0.5, top - 0.5, wide + 1, height + 1);
}

/** @param {Model} model @returns {import("../../charts/saving/files.js").Rows} */
function allRows({ map, rows }) {
  const odd = new Set(map.outliers.map(({ rank }) => rank));
  const cells = rows.flatMap((row) => row.cells);
  return { columns: ["rank", "host", "local_rank", "place", "ranks", map.measure, "state"], rows: cells.map(({ rank, host, localRank, place, count: ranks, value }) => [rank, host ?? "", localRank, place, ranks, value, odd.has(rank) ? "stands out" : isKnown(value) ? "value" : host === null ? "not reported" : "not known"]) };
}

/** Who stands out first, then by rank. @param {Model} model @returns {import("../../charts/saving/rows.js").Summary} */
function oddRows({ map, rows }) {
  const odd = new Set(map.outliers.map(({ rank }) => rank));
  const cells = rows.flatMap((row) => row.cells).sort((a, b) => Number(odd.has(b.rank)) - Number(odd.has(a.rank)) || a.rank - b.rank);
  const shown = cells.slice(0, MOST_ROWS).map(({ rank, host, value }) => [`rank ${rank}`, host ?? "not reported", isKnown(value) ? valueText(map, value) : "not known", odd.has(rank) ? "stands out" : ""]);
  const note = [othersText(map), cells.length > MOST_ROWS ? `${MOST_ROWS} of ${count(cells.length)} ranks; the CSV file has all.` : ""].filter(Boolean).join(". ");
  return { columns: ["Rank", "Node", map.title, "Note"], rows: shown, note };
}
