// The last linkcheck: its verdict, latency and busbw of each pair of ranks, and what went wrong.

import { el } from "../dom.js";
import { clip } from "../format.js";
import { linkGrid, linkNote, linkProblems, linkSummary, linkText, linkVerdict, tidy } from "../linkcheck_words.js";
import { createCellHeatmap } from "./cell_heatmap.js";
import { createSortedTable } from "./sorted_table.js";
import { createVerdict } from "./verdict.js";

/** @typedef {import("../types.js").Linkcheck} Linkcheck */
/** @typedef {import("../linkcheck_words.js").Measure} Measure */

/** Times worse than the median pair. Fixed, so that two checks compare by eye. */
const TIMES = { low: 1, high: 8, ticks: [1, 2, 4, 8], text: (/** @type {number} */ times) => (times === 1 ? "median" : times === 8 ? "8+ times worse" : `${times}`) };

/** @param {import("../types.js").PageContext} ctx */
export function createLinkMatrix(ctx) {
  /** @type {Linkcheck | null} */
  let result = null;
  const heatmap = (/** @type {Measure} */ measure, /** @type {string} */ name, /** @type {string} */ title) =>
    createCellHeatmap({ name, title, scale: TIMES, unknown: "not tested", bad: "failed", square: true, say: (_, spot) => (result ? linkText(result, measure, spot) : "") });
  const busbw = heatmap("busbw_bytes_per_s", "busbw", "busbw of each pair");
  const latency = heatmap("latency_s", "latency", "Latency of each pair");
  const verdict = createVerdict();
  verdict.element.dataset.testid = "link-verdict";
  const note = el("p", { class: "muted figure-notes" });
  const problems = createSortedTable(
    ctx,
    [
      { name: "Who", by: (/** @type {{who: string, where: string, what: string}} */ row) => row.who, show: (row) => row.who },
      { name: "Where", by: (row) => row.where, show: (row) => clip(row.where, 60) },
      { name: "What", show: (row) => el("span", { class: "breaks" }, clip(row.what, 400)) },
    ],
    { caption: "What went wrong", name: "link-problems", most: 100 },
  );
  const matrices = el("div", { class: "matrices" }, busbw.element, latency.element);
  const element = el("section", { class: "linkcheck", "data-testid": "linkcheck", hidden: true }, el("h2", {}, "Links between the ranks"), verdict.element, note, matrices, problems.element);
  let shown = "";

  return {
    element,
    /** @param {Linkcheck | null} posted @param {number} nowNs @param {import("./picture.js").Whose} [whose] */
    update(posted, nowNs, whose) {
      element.hidden = posted === null;
      if (posted === null) return;
      const next = tidy(posted);
      verdict.update(linkVerdict(next, nowNs));
      problems.update(linkProblems(next)); // in another order, it may be
      const now = JSON.stringify(next);
      if (now === shown) return;
      shown = now;
      result = next;
      note.textContent = linkNote(next);
      matrices.hidden = !next.pairs?.length;
      busbw.update(linkGrid(next, "busbw_bytes_per_s"), linkSummary(next, "busbw_bytes_per_s"), linkSummary(next, "busbw_bytes_per_s"), whose);
      latency.update(linkGrid(next, "latency_s"), linkSummary(next, "latency_s"), linkSummary(next, "latency_s"), whose);
    },
    destroy() {
      busbw.destroy();
      latency.destroy();
    },
  };
}
