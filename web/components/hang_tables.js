// How far each rank of a group is, and what each called where they called different things.

import { el } from "../dom.js";
import { clip, count, rankList } from "../format.js";
import { groupCaption, rankOrder, rankState, sequenceRows, whereText } from "../hang_words.js";
import { UNKNOWN, bytes } from "../quantities.js";

/** @typedef {import("../types.js").Hang} Hang */
/** @typedef {import("../types.js").HangGroup} HangGroup */

const MOST_RANKS = 64;
const NUMBERS = ["Last called", "Last completed", "Size"];

/** @param {string} caption @param {string} name @param {readonly string[]} heads @param {HTMLTableRowElement[]} rows */
function table(caption, name, heads, rows) {
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col", class: NUMBERS.includes(text) ? "number" : null }, text)));
  return el("div", { class: "panel table-scroll" }, el("table", { class: "dense hang-table", "data-testid": name }, el("caption", { class: "breaks" }, caption), el("thead", {}, head), el("tbody", {}, ...rows)));
}

/** @param {number | null} sequence */
const number = (sequence) => (sequence === null ? UNKNOWN : count(sequence));

/** @param {HangGroup} group @param {readonly number[]} odd who has called something else */
export function groupTable(group, odd) {
  const rows = sequenceRows(group, odd).map(({ ranks, enqueued, completed, isMissing, isOdd, has }) =>
    el(
      "tr",
      { "data-missing": isMissing || isOdd },
      el("td", {}, clip(rankList(ranks), 120)),
      el("td", { class: "number" }, number(enqueued)),
      el("td", { class: "number" }, number(completed)),
      el("td", {}, isMissing ? el("strong", { class: "bad" }, "✕ missing") : isOdd ? el("strong", { class: "bad" }, "▲ calls something else") : has === "yes" ? "has joined" : has === "no" ? "has not" : UNKNOWN),
    ),
  );
  return table(groupCaption(group), "hang-group", ["Ranks", "Last called", "Last completed", "In this collective"], rows);
}

/** Where no collective is known that ranks wait in: how far each of them is. @param {Hang} hang */
export function rankTable({ ranks, kind }) {
  const all = rankOrder(ranks);
  const rows = all.slice(0, MOST_RANKS).map((rank) =>
    el("tr", { "data-missing": rank.role === "missing" }, el("td", {}, `rank ${rank.rank}`), el("td", {}, rankState(rank, kind)), el("td", { class: "breaks" }, el("code", {}, clip(whereText(rank.where) || UNKNOWN, 200)))),
  );
  const which = all.length > MOST_RANKS ? `the first ${MOST_RANKS} of ${all.length} ranks` : "all ranks";
  return table(`No collective is known that ranks wait in; ${which}`, "hang-ranks", ["Rank", "State", "Where"], rows);
}

/** The sides of a mismatch, most ranks first, with the line of a rank of each. @param {Hang} hang */
export function mismatchTable({ mismatch, ranks }) {
  const lineOf = (/** @type {readonly number[]} */ mine) => whereText(ranks.find(({ rank, where }) => where && mine.includes(rank))?.where ?? null) || UNKNOWN;
  const rows = mismatch.map((side) =>
    el(
      "tr",
      {},
      el("td", {}, clip(rankList(side.ranks), 120)),
      el("td", {}, clip(side.op, 60)),
      el("td", { class: "number" }, bytes(side.bytes)),
      el("td", {}, side.dtype || UNKNOWN),
      el("td", { class: "breaks" }, el("code", {}, clip(lineOf(side.ranks), 200))),
    ),
  );
  return table("Not the same on all ranks", "hang-mismatch", ["Ranks", "Op", "Size", "Type", "Where"], rows);
}
