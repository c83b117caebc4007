// The drops of the loss scale as a table, and what their causes mean. A row that is read stays where it is while the run goes on.

import { el, link, replace } from "../dom.js";
import { clip, count } from "../format.js";
import { keepRows } from "../keep_rows.js";
import { causeWords, headroomText, ranksText, scalesText, stepPath } from "../loss_scale_words.js";
import { onward, runPath } from "../url_state.js";

/** @typedef {import("../loss_scale_words.js").Drop} Drop */

const COLUMNS = ["Step", "Scale", "Cause", "Ranks", "First to overflow", "Headroom before"];

/** @param {import("../types.js").PageContext} ctx */
export function createDropsTable(ctx) {
  const body = el("tbody");
  const caption = el("caption");
  const table = el("table", { class: "dense drops-table", "data-testid": "drops-table" }, caption, el("thead", {}, el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)))), body);
  const causes = el("dl", { class: "cause-list" });
  const pager = el("nav", { class: "pager", "aria-label": "Pages of drops" });
  const element = el("section", { class: "panel drops" }, el("div", { class: "table-scroll" }, table), pager, causes);
  let explained = "";

  /** @param {readonly Drop[]} drops */
  function explain(drops) {
    const found = [...new Set(drops.map(({ cause }) => cause))];
    if (explained === String(found)) return;
    explained = String(found);
    replace(causes, ...found.flatMap(causeLines));
  }

  return {
    element,
    /** @param {readonly Drop[]} drops @param {{older: string | null, newest: string | null}} pages addresses */
    update(drops, { older, newest }) {
      element.hidden = !drops.length && !newest;
      caption.textContent = newest ? "Earlier drops, newest first" : "Drops, newest first";
      keepRows(body, drops.map((drop) => rowOf(drop, ctx)));
      keepRows(pager, [newest && pageLink(newest, "Newest drops"), older && pageLink(older, "Earlier drops")].filter((one) => one instanceof Element));
      explain(drops);
    },
  };
}

/** @param {string} path @param {string} text */
const pageLink = (path, text) => link(path, { "data-key": text }, text);

/** @param {Drop} drop @param {import("../types.js").PageContext} ctx */
function rowOf(drop, { params, state }) {
  const { step, first, cause } = drop;
  const tensor = first ? link(runPath(params.id, "tensor", onward(state, { tensor: first.tensor, rank: first.rank })), { class: "name", title: first.label }, clip(first.label, 100)) : el("span", { class: "muted" }, "not known");
  const cells = [
    link(stepPath(drop, params.id, state), {}, count(step)),
    scalesText(drop),
    el("span", { class: cause === "forward" || cause === "reduction" ? "bad" : "" }, causeWords(cause).what),
    ranksText(drop),
    tensor,
    headroomText(first),
  ];
  return el("tr", { "data-key": step, "data-cause": clip(cause, 20) }, ...cells.map((cell, i) => el("td", { "data-label": COLUMNS[i] }, cell)));
}

/** @param {string} cause */
function causeLines(cause) {
  const { what, means, todo } = causeWords(cause);
  return [el("dt", {}, what.slice(0, 1).toUpperCase() + what.slice(1)), el("dd", {}, means, " ", el("strong", {}, "What to do: "), todo)];
}
