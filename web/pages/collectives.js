// Collectives: who keeps whom waiting, how fast each kind of collective is, and one step across the ranks.

import * as api from "../api.js";
import { columnAxis } from "../alert_marks.js";
import { timelineOf, timelineSummary } from "../call_timeline.js";
import { costGrid, costSummary, costText, leftOutLine, sourceLines, waitCards, waitVerdict, whyNone } from "../collectives_words.js";
import { createAlertRow } from "../components/alert_row.js";
import { createCallLanes } from "../components/call_lanes.js";
import { across, createCellHeatmap } from "../components/cell_heatmap.js";
import { createCollectivesTable, createRankTable } from "../components/collectives_tables.js";
import { createFactCards, createNothing } from "../components/fact_cards.js";
import { createRangeBar } from "../components/range_bar.js";
import { mountRunPage } from "../components/run_page.js";
import { createStepJump } from "../components/step_jump.js";
import { pictureOf } from "../components/picture.js";
import { createVerdict } from "../components/verdict.js";
import { el, replace } from "../dom.js";
import { clip, count } from "../format.js";
import { time } from "../quantities.js";
import { shownRange } from "../url_state.js";

/** @typedef {import("../types.js").Collectives} Collectives */

/** Seconds that a rank costs the others in a step. Fixed, so that two runs compare by eye. */
const COST = { low: 1e-4, high: 1, ticks: [1e-4, 1e-3, 1e-2, 0.1, 1], text: (/** @type {number} */ s) => (s === 1 ? "1000+ ms" : `${s * 1e3} ms`) };

const HINTS = [
  "Ranks are compared by how long each was in the same collective: the one that comes last is in it for the shortest time, so no clocks need to agree.",
  "A cell is what the others waited for that rank in that step. Click it for that step's collectives.",
];

/** @param {import("../types.js").PageContext} ctx @returns {import("../components/run_page.js").RunView} */
function build(ctx) {
  const run = ctx.params.id;
  /** @type {Collectives | null} */
  let shown = null;
  const verdict = createVerdict();
  const cards = createFactCards();
  const nothing = createNothing("No collective was recorded in these steps");
  const lines = el("ul", { class: "source-list" });
  const sources = el("section", { class: "panel source-lines", "data-testid": "sources" }, el("h2", {}, "How each rank times them"), lines);
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))), (width) => across(width).left);
  const heat = createCellHeatmap({
    name: "cost",
    title: "Cost to the others, by rank and step",
    scale: COST,
    unknown: "not known",
    say: (_, spot) => (shown ? costText(shown, spot) : ""),
    pick: (_, { column }) => shown && ctx.setState({ step: shown.steps[column] }),
    keys: "Arrow keys read out the cells, Enter shows that step's collectives.",
  });
  const alerts = createAlertRow(run, { marked: heat.mark });
  const leftOut = el("p", { class: "muted figure-notes" });
  const ranks = createRankTable(ctx);
  const table = createCollectivesTable(ctx);
  const jump = createStepJump(ctx);
  const lanes = createCallLanes();
  const some = el("div", { class: "lanes" }, alerts.element, heat.element, jump.element, lanes.element, ranks.element, table.element, leftOut);
  const element = el("div", {}, verdict.element, cards.element, range.element, nothing.element, some, sources);

  /** @param {Collectives} answer @param {import("../types.js").Run} about */
  function show(answer, about) {
    shown = answer;
    verdict.update(waitVerdict(answer, run, ctx.state));
    cards.update(waitCards(answer));
    const isEmpty = !answer.table.length;
    verdict.element.hidden = isEmpty;
    nothing.update(isEmpty ? whyNone(answer.sources) : null);
    some.hidden = isEmpty;
    sources.hidden = isEmpty || !answer.sources.length;
    replace(lines, ...sourceLines(answer.sources).map((line) => el("li", {}, clip(line, 400))));
    heat.update(costGrid(answer), costSummary(answer), "what all others waited for it, added up; each column: one step", pictureOf(about, answer));
    ranks.update(answer.by_rank);
    table.update(answer.table);
    leftOut.textContent = [leftOutLine(answer.left_out), ...desyncLines(answer)].filter(Boolean).join(" ");
  }

  return {
    element,
    async update(about, signal) {
      const { step } = ctx.state;
      const { start, stop } = ctx.state.last === null ? ctx.state : shownRange(ctx.state, about);
      range.update(about);
      const [answer, calls] = await Promise.all([api.collectives(run, { start, stop }, signal), api.collectivesOfStep(run, { step }, signal), alerts.load(signal)]);
      show(answer, about);
      alerts.show((width) => columnAxis(answer.steps, across(width)));
      const timeline = timelineOf(calls);
      const name = calls.step === null ? "" : `step ${count(calls.step)}, ${time(timeline.span_s)}; each rank from its own first collective`;
      lanes.update(timeline, [name, timelineSummary(timeline)].filter(Boolean).join(". "), name, pictureOf(about, calls.step === null ? null : { start: calls.step, stop: calls.step + 1 }));
      jump.update(calls);
    },
    destroy() {
      alerts.destroy();
      heat.destroy();
      lanes.destroy();
    },
  };
}

/** Where ranks called different things. @param {Collectives} answer */
function desyncLines({ desyncs = [] }) {
  return desyncs.slice(0, 3).map(({ sentence, sequence }) => sentence ?? `The ranks did not call the same at sequence ${sequence}.`);
}

/** @type {import("../types.js").Page} */
export default {
  id: "collectives",
  title: "Collectives",
  path: "/runs/{id}/collectives",
  mount: (root, ctx) => mountRunPage(root, ctx, "Collectives", () => build(ctx), { needsStep: false }),
};
