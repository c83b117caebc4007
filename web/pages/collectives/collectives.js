// The Collectives page: which rank keeps the others waiting, how fast each kind of collective is, and one step across
// the ranks.

import * as api from "../../api/client.js";
import { onward, runPath, shownRange } from "../../api/url_state.js";
import { columnAxis } from "../../charts/alerts/alert_marks.js";
import { createAlertRow } from "../../charts/alerts/alert_row.js";
import { across, createCellHeatmap } from "../../charts/cells/cell_heatmap.js";
import { pictureOf } from "../../charts/cells/picture.js";
import { el, link, replace } from "../../format/dom.js";
import { capital, clip, count, rankList } from "../../format/numbers.js";
import { bandwidth, bytes, percent, time } from "../../format/units.js";
import { createDetailCards, createNothing } from "../../widgets/detail_cards.js";
import { createRangeBar } from "../../widgets/controls/range_bar.js";
import { known } from "../../widgets/ranks/mesh_places.js";
import { createRankMap } from "../../widgets/ranks/rank_map.js";
import { runPage } from "../../widgets/run_page.js";
import { createSortedTable } from "../../widgets/tables/sorted_table.js";
import { createVerdict } from "../../widgets/verdict.js";
import { createCallLanes, timelineOf, timelineSummary } from "./call_timeline.js";
import { costGrid, costText, costsOf, equalGroups, rankRows, rowText } from "./costs.js";

/** @typedef {import("../../types.js").Collectives} Collectives */

/** Steps in the heatmap. */
const COLUMNS = 600;
/** Seconds that a rank costs the others in a step. Fixed, so that two runs compare by eye. */
const COST = { low: 1e-4, high: 1, ticks: [1e-4, 1e-3, 1e-2, 0.1, 1], text: (/** @type {number} */ s) => (s === 1 ? "1000+ ms" : `${s * 1e3} ms`) };

const HINTS = [
  "Ranks are compared by how long each was in the same collective: the one that comes last is in it for the shortest time, so no clocks need to agree.",
  "A cell is what each of the others waited for that rank in that step: time on the wall, as in the table. Click it for that step's collectives.",
  "Of many ranks those that stand out have rows of their own, and the others are one row with their median.",
];

/** @param {import("../../types.js").PageContext} ctx @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx) {
  const run = ctx.params.id;
  /** @type {import("./costs.js").Costs | null} */
  let shown = null;
  const verdict = createVerdict();
  const cards = createDetailCards();
  const nothing = createNothing("No collective was recorded in these steps");
  const lines = el("ul", { class: "source-list" });
  const sources = el("section", { class: "panel source-lines", "data-testid": "sources" }, el("h2", {}, "How each rank times them"), lines);
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))), (width) => across(width).left);
  const heat = createCellHeatmap({
    name: "cost",
    title: "Cost to each of the others, by rank and step",
    scale: COST,
    unknown: "not known",
    readout: (_, spot) => (shown ? costText(shown, spot) : ""),
    pick: (_, { column }) => shown && ctx.setState({ step: shown.steps[column] }),
    keys: "Arrow keys read out the cells, Enter shows that step's collectives.",
  });
  const map = createRankMap(ctx, "cost");
  const alerts = createAlertRow(run, { marked: heat.mark });
  const leftOut = el("p", { class: "muted figure-notes" });
  const ranks = createRankTable(ctx);
  const table = createCollectivesTable(ctx);
  const jump = createStepJump(ctx);
  const lanes = createCallLanes();
  const some = el("div", { class: "lanes" }, alerts.element, heat.element, jump.element, lanes.element, ranks.element, table.element, leftOut);
  const element = el("div", {}, verdict.element, cards.element, map.element, range.element, nothing.element, some, sources);

  /** @param {Collectives} answer @param {import("./costs.js").Costs} costs @param {import("../../types.js").Run} about @param {import("../../types.js").StepRange} view */
  function show(answer, costs, about, view) {
    shown = costs;
    verdict.update(waitVerdict(answer, run, ctx.state));
    cards.update(waitCards(answer));
    const isEmpty = !answer.table.length;
    verdict.element.hidden = isEmpty;
    nothing.update(isEmpty ? whyNone(answer.sources) : null);
    some.hidden = isEmpty;
    sources.hidden = isEmpty || !answer.sources.length;
    replace(lines, ...sourceLines(answer.sources).map((line) => el("li", {}, clip(line, 400))));
    heat.update(costGrid(costs), costSummary(answer), costs.note, pictureOf(about, view));
    ranks.update(answer.by_rank, ctx.state.pin);
    table.update(equalGroups(answer.table));
    leftOut.textContent = [leftOutLine(answer.left_out), ...desyncLines(answer)].filter(Boolean).join(" ");
  }

  return {
    element,
    async update(about, signal) {
      const { state } = ctx;
      const view = shownRange(state, about);
      const isPart = state.start !== null || state.stop !== null || state.last !== null;
      const { start, stop } = state.last === null ? state : view;
      range.update(about);
      const costs = api.slowFigure(run, "waits", { ...view, columns: COLUMNS, ...(known(about, state.fold) ? { fold: state.fold } : {}) }, signal).then(costsOf);
      const [answer, grid] = await Promise.all([api.collectives(run, { start, stop }, signal), costs, alerts.load(signal), map.update(about, signal)]);
      // The one step is of those that are shown, too.
      const step = isPart ? stepWithin(state.step, view, answer.steps) : state.step;
      const calls = await api.collectivesOfStep(run, { step }, signal);
      show(answer, grid, about, view);
      alerts.show((width) => columnAxis(grid.steps, across(width)));
      const timeline = timelineOf(calls, state.pin);
      const name = calls.step === null ? "" : `step ${count(calls.step)}, ${time(timeline.span_s)}; each rank from its own first collective`;
      lanes.update(timeline, [name, timelineSummary(timeline)].filter(Boolean).join(". "), name, pictureOf(about, calls.step === null ? null : { start: calls.step, stop: calls.step + 1 }));
      jump.update(isPart ? { ...calls, first_step: view.start, last_step: view.stop - 1 } : calls);
    },
    destroy() {
      alerts.destroy();
      map.destroy();
      heat.destroy();
      lanes.destroy();
    },
  };
}

/** The step asked for, no further than the shown ones; else the last of these with records. @param {number | null} step @param {import("../../types.js").StepRange} view @param {readonly number[]} known */
export function stepWithin(step, { start, stop }, known) {
  return Math.max(start, Math.min(stop - 1, step ?? known.at(-1) ?? stop - 1));
}

/** Where ranks called different things. @param {Collectives} answer */
function desyncLines({ desyncs = [] }) {
  return desyncs.slice(0, 3).map(({ sentence, sequence }) => sentence ?? `The ranks did not call the same at sequence ${sequence}.`);
}

export default runPage({
  id: "collectives",
  title: "Collectives",
  key: "c",
  help: "Which rank keeps the others waiting",
  needsStep: false,
  build,
});

// Which step is shown: typed, or one further.

/** @param {import("../../types.js").PageContext} ctx */
function createStepJump(ctx) {
  const input = el("input", { type: "number", min: 0, name: "step", "aria-label": "Step" });
  const jumps = el("div", { class: "jumps" });
  const newest = el("button", { type: "button", class: "quiet", click: () => ctx.setState({ step: null }) }, "Newest step");
  const form = el("form", { class: "inline-form", submit: go }, el("label", { class: "field" }, "Step ", input), el("button", { type: "submit", class: "quiet" }, "Go"));

  /** @param {SubmitEvent} event */
  function go(event) {
    event.preventDefault();
    if (input.value !== "") ctx.setState({ step: Number(input.value) });
  }

  /** @param {string} text @param {number} step @param {boolean} isThere */
  const jump = (text, step, isThere) => el("button", { type: "button", class: "quiet", "data-key": text, disabled: !isThere, click: () => ctx.setState({ step }) }, text);

  return {
    element: el("div", { class: "filters" }, form, jumps, newest),
    /** @param {import("../../types.js").StepCalls} answer */
    update({ step, first_step: first, last_step: last }) {
      newest.hidden = ctx.state.step === null;
      if (step === null) return;
      if (document.activeElement !== input) input.value = String(step);
      input.title = `${count(first)} to ${last === null ? "the last" : count(last)}`;
      const focused = jumps.querySelector(":focus")?.getAttribute("data-key");
      replace(jumps, jump("Previous step", step - 1, step > first), jump("Next step", step + 1, last !== null && step < last));
      /** @type {HTMLElement | null} */ (focused ? jumps.querySelector(`[data-key="${focused}"]`) : null)?.focus();
    },
  };
}

// The collectives by group, op and size; and the ranks by what they cost the others.

/** @typedef {import("../../types.js").CollectivesRow & {groups: string[]}} Row */
/** @typedef {import("../../types.js").RankWaits} RankWaits */

const MOST_ROWS = 24;

/** @param {string} name @param {keyof Row} key @param {(value: number | null) => string} text @param {string} [help] @returns {import("../../widgets/tables/sorted_table.js").Column<Row>} */
const number = (name, key, text, help) => {
  const by = (/** @type {Row} */ row) => /** @type {number | null} */ (row[key] ?? null);
  return { name, by, show: (row) => text(by(row)), isNumber: true, help };
};

/** @param {import("../../types.js").PageContext} ctx */
const createCollectivesTable = (ctx) =>
  createSortedTable(
    ctx,
    [
      { name: "Group", by: (/** @type {Row} */ row) => row.group, show: (row) => el("span", { class: "name", title: clip(row.groups.join(", "), 400) }, row.groups.length > 1 ? `${clip(row.group, 50)} and ${row.groups.length - 1} like it` : clip(row.group, 60)) },
      number("Ranks", "ranks", count),
      { name: "Op", by: (row) => row.op, show: (row) => clip(row.op, 60) },
      number("Size from", "size_class_bytes", bytes, "Sizes from this up to twice as much"),
      number("Count", "count", count),
      number("Time p50", "duration_p50_s", time),
      number("Time p99", "duration_p99_s", time),
      number("Time max", "duration_max_s", time),
      number("algbw", "algbw_bytes_per_s", bandwidth, "Bytes over the least duration of the ranks, as nccl-tests has it"),
      number("busbw", "busbw_bytes_per_s", bandwidth, "algbw by nccl-tests' factor for the op and the size of the group"),
      number("Wait p50", "wait_p50_s", time, "Duration less the least of the ranks"),
      number("Wait p99", "wait_p99_s", time),
    ],
    { caption: "By group, op and size", name: "collectives-table", most: MOST_ROWS },
  );

/** @typedef {import("./costs.js").RankRow & {view: ReturnType<typeof onward>}} RankRow `view`: what its link takes along, so that it follows the shown steps */

/** @param {import("../../types.js").PageContext} ctx */
function createRankTable(ctx) {
  const name = (/** @type {RankRow} */ row) => (row.ranks.length === 1 ? link(runPath(ctx.params.id, "gpu", { ...row.view, rank: row.ranks[0] }), {}, rowText(row)) : el("span", { title: clip(rankList(row.ranks), 400) }, clip(rowText(row), 60)));
  const table = createSortedTable(
    ctx,
    [
      { name: "Rank", by: (/** @type {RankRow} */ row) => row.first.rank, show: name, isNumber: true },
      { name: "Came last", by: (row) => row.first.last_share, show: (row) => row.last, isNumber: true, help: "Share of the collectives in which one rank was clearly last" },
      { name: "Costs a step", by: (row) => row.first.cost_s, show: (row) => row.cost, isNumber: true, help: "What each of the others waits for it, time on the wall" },
      { name: "Waits a step", by: (row) => row.first.wait_s, show: (row) => row.wait, isNumber: true, help: "What it waits for the others itself" },
    ],
    { caption: "By rank, means of these steps", name: "ranks-table", sortBy: "Costs a step", most: 64 },
  );
  return {
    element: table.element,
    /** @param {readonly RankWaits[]} ranks @param {number | null} pin */
    update: (ranks, pin) => table.update(rankRows(ranks, pin).map((row) => ({ ...row, view: onward(ctx.state) }))),
  };
}

// Texts of the collectives: the verdict, the cards, the sources of times.

/** @typedef {import("../../types.js").TimingSource} TimingSource */

/** Ranks of a late host that are linked to. */
const MOST_LINKS = 8;

/** How a rank times its collectives, best first. @type {Record<string, string>} */
const TIMING_METHODS = {
  hooks: "hooks of the process groups, each collective from call to end",
  flight_recorder: "torch's flight recorder, read now and then",
  ddp: "DDP's communication hook, each bucket of gradients",
  wrapped: "the wrapped calls of torch.distributed",
  step_level: "only whole steps; no single collective is timed",
  hidden: "hidden under CUDA graphs: these collectives happen, and cannot be timed",
};

/** The page's first sentence. @param {Collectives} answer @param {string} run @param {Parameters<typeof onward>[0]} [state] @returns {import("../../types.js").Verdict} */
export function waitVerdict({ verdict, why_no_verdict: why, table }, run, state = {}) {
  if (!verdict) return { level: table.length ? "ok" : "empty", parts: [["text", why ?? "No straggler."]], links: [] };
  const { rank, ranks = [], text } = verdict;
  const late = rank === null ? ranks.slice(0, MOST_LINKS) : [rank];
  const links = late.flatMap((one) => [
    { label: `GPU of rank ${one}`, path: runPath(run, "gpu", onward(state, { rank: one })) },
    ...(rank === null ? [] : [{ label: `Layers of rank ${one}`, path: runPath(run, "layers", onward(state, { rank: one })) }]),
  ]);
  return { level: "warning", parts: [["text", text]], links };
}

/** @param {import("../../types.js").WaitVerdict} verdict */
function waitedFor({ rank, host = null }) {
  if (rank !== null) return `rank ${rank}`;
  return host === null ? "nobody" : clip(`host ${host}`, 60);
}

/** @param {Collectives} answer @returns {import("../../widgets/detail_cards.js").Card[]} */
export function waitCards({ verdict, coverage, table, start, stop }) {
  if (!table.length) return [];
  const timed = table.reduce((sum, row) => sum + row.count, 0);
  const verdictCards = verdict
    ? [
        { title: "Straggler", value: waitedFor(verdict), under: verdict.class, level: "warning" },
        { title: "Where", value: verdict.where, under: `since step ${count(verdict.since_step)}` },
        { title: "Costs a step", value: time(verdict.cost_s), under: `time on the wall; it cost most in ${percent(verdict.share)} of steps` },
      ]
    : [{ title: "Straggler", value: "none", under: "no rank keeps the others waiting" }];
  return [...verdictCards, { title: "Collectives", value: count(timed), under: `${percent(coverage)} with a known duration; steps ${count(start)}-${count(stop - 1)}` }];
}

/** One line for each way of timing, with the ranks that use it. @param {readonly TimingSource[]} sources @returns {string[]} */
export function sourceLines(sources) {
  /** @type {Map<string, number[]>} */
  const ranks = new Map();
  for (const { rank, rung, why } of sources) {
    const known = Object.hasOwn(TIMING_METHODS, rung) ? TIMING_METHODS[rung] : rung;
    const line = [known, why].filter(Boolean).join(". Why: ");
    ranks.set(line, [...(ranks.get(line) ?? []), rank]);
  }
  return [...ranks].map(([line, mine]) => `${capital(rankList(mine))}: ${line}`);
}

/** @param {Record<string, number>} leftOut by op */
export function leftOutLine(leftOut) {
  const parts = Object.entries(leftOut).filter(([, n]) => n > 0).map(([op, n]) => `${op} (${count(n)})`);
  return parts.length ? `Left out of the waits: ${parts.join(", ")}. Rooted and point-to-point ops do not end together, and what is not known on all ranks cannot be compared, so these show nothing of who is late.` : "";
}

/** Why there is no collective here. @param {readonly TimingSource[]} sources @returns {string[]} */
export function whyNone(sources) {
  if (!sources.length) return ["No rank has reported how it would time its collectives: either it is one process alone, or its agent does not record them. They are timed from torch.distributed's process groups once those are made."];
  return ["This is how the ranks time them:", ...sourceLines(sources)];
}

/** One line for who cannot see the heatmap. @param {Collectives} answer */
function costSummary({ by_rank: ranks, steps }) {
  const known = ranks.filter((rank) => rank.cost_s !== null);
  if (!known.length || !steps.length) return "Nothing is known.";
  const most = known.reduce((a, b) => (Number(b.cost_s) > Number(a.cost_s) ? b : a));
  return `Steps ${count(steps[0])} to ${count(steps[steps.length - 1])}; rank ${most.rank} costs the others most, ${time(most.cost_s)} a step.`;
}
