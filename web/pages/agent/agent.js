// The Agent page: what Rangewatch's agent does and costs on each rank, what it leaves out, and where it failed.

import * as api from "../../api/client.js";
import { shownRange } from "../../api/url_state.js";
import { createLaneGroup } from "../../charts/lanes/lane_group.js";
import { plainLines, points, readLines, valueAt } from "../../charts/lines.js";
import { el, replace } from "../../format/dom.js";
import { clip, count, plural, seconds } from "../../format/numbers.js";
import { decode } from "../../format/typed_array.js";
import { percent } from "../../format/units.js";
import { createDetailCards } from "../../widgets/detail_cards.js";
import { createRankPicker } from "../../widgets/filters.js";
import { createRangeBar } from "../../widgets/range_bar.js";
import { mountRunPage } from "../../widgets/run_page.js";
import { createSortedTable } from "../../widgets/sorted_table.js";
import { stateBadge } from "../../widgets/state_badge.js";
import { createVerdict } from "../../widgets/verdict.js";
import { accounts, agentGroups, agentVerdict, ranksText, totals } from "./agent_text.js";

/** @typedef {import("../../types.js").Run} Run */
/** @typedef {ReturnType<typeof usualCost>} Usual */

/** What it costs now is read of so many of the newest steps, each by itself. */
const NEWEST = 1000;

const HINTS = [
  "The agent measures its own time in one step of 17: that of its hooks on the training thread, and that of its kernels on the device.",
  "What torch needs to come to a hook is not in it: some microseconds a hook.",
  "Drag over the lane to see fewer steps, double click to see all.",
];

/** @param {import("../../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx, refetch) {
  const verdict = createVerdict();
  const cards = createDetailCards();
  const rank = createRankPicker(ctx, { all: true });
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const group = createLaneGroup(ctx, [{ spec: AGENT_COST, options: { query, load: loadCost } }], refetch);
  const cost = el("div", {}, el("div", { class: "filters" }, rank.element), range.element, group.element);
  const place = el("div", {}); // what is never drawn is not in the page
  const noCost = el("p", { class: "panel agent-nothing", "data-testid": "no-cost" });
  const tables = { groups: createGroupTable(ctx), dropped: createDroppedTable(ctx), faults: createFaultTable(ctx), unobserved: createUnobservedTable(ctx), unfused: createUnfusedTable(ctx) };
  const element = el("div", {}, verdict.element, cards.element, place, noCost, ...Object.values(tables).map((table) => table.element));

  /** @param {Run} run @param {Usual} usual */
  function show(run, usual) {
    verdict.update(agentVerdict(run.ranks));
    cards.update(cardsOf(run, usual));
    tables.groups.update(agentGroups(run.ranks));
    tables.dropped.update(totals(run.ranks, "dropped"));
    tables.faults.update(totals(run.ranks, "faults"));
    tables.unobserved.update(accounts(run.ranks, "not_observed"));
    tables.unfused.update(accounts(run.ranks, "not_fused"));
  }

  return {
    element,
    async update(run, signal) {
      const isMeasured = run.last_step !== null && hasCost(run.series);
      if (isMeasured !== (cost.parentNode === place)) replace(place, isMeasured && cost);
      noCost.hidden = isMeasured;
      noCost.textContent = run.last_step === null ? "No step has arrived, so what the agent costs is not known." : "These agents have not said what they cost: the first step that is measured may be yet to come, or they are older than that.";
      show(run, isMeasured ? await costNow(run, signal) : null);
      if (!isMeasured) return;
      rank.update(run.ranks.map((one) => one.rank), ctx.state.rank);
      range.update(run);
      await group.update({ run, state: ctx.state, range: shownRange(ctx.state, run) }, signal);
    },
    destroy: group.destroy,
  };
}

/** @param {import("../../charts/lanes/lane.js").View} view */
const query = ({ state }) => ({ rank: state.rank ?? "all" });

/** On the training thread, mean of the ranks. @param {Run} run @param {AbortSignal} signal */
async function costNow(run, signal) {
  const range = shownRange({ start: null, stop: null, last: NEWEST }, run);
  const [cost, whole] = await Promise.all(["agent_time_s", "step_time_s"].map((name) => readSeries(run, name, { ...range, columns: NEWEST }, signal)));
  return usualCost(cost, whole);
}

/** @param {Run} run @param {Usual} usual @returns {import("../../widgets/detail_cards.js").Card[]} */
function cardsOf(run, usual) {
  const sum = (/** @type {"dropped" | "faults"} */ account) => totals(run.ranks, account).reduce((all, { total }) => all + total, 0);
  const lowered = run.ranks.filter(({ level }) => level).length;
  const [dropped, faults] = [sum("dropped"), sum("faults")];
  const unseen = accounts(run.ranks, "not_observed").length;
  const time = usual && { title: "Its time in a step", value: seconds(usual.time_s), under: `${usual.share === null ? "" : `${percent(usual.share)} of the step, `}median of ${plural(usual.steps, "measured step")}` };
  return [
    time ?? { title: "Its time in a step", value: "not measured" },
    { title: "Ranks with an agent", value: count(run.ranks.length), under: `of ${count(run.world_size)}` },
    { title: "Ranks that record less", value: lowered ? plural(lowered, "rank") : "none", level: lowered ? "warning" : undefined },
    { title: "Dropped", value: dropped ? plural(dropped, "record") : "none", level: dropped ? "warning" : undefined },
    { title: "Faults", value: faults ? count(faults) : "none", level: faults ? "overflow" : undefined },
    { title: "Not observed", value: unseen ? plural(unseen, "module") : "none", level: unseen ? "warning" : undefined },
  ];
}

/** @type {import("../../types.js").Page} */
export default {
  id: "agent",
  title: "Agent",
  path: "/runs/{id}/agent",
  mount: (root, ctx) => mountRunPage(root, ctx, "Agent", (refetch) => build(ctx, refetch), { needsStep: false }),
};

// The agent's own time over the steps, as a lane: on the training thread, and on the device.

/** @typedef {import("../../charts/lines.js").LinesModel} LinesModel */

/** One step in so many is measured (the agent's `limits.COST_EVERY`): a value stands for those near it. Steps. */
const MEASURED_EVERY = 17;

/** @param {readonly string[]} series of the run */
const hasCost = (series) => Object.keys(COSTS).some((name) => series.includes(name));

/** A series of some steps; null where the run has none of that name. @param {Run} run @param {string} name @param {import("../../api/client.js").Query} query @param {AbortSignal} signal */
function readSeries(run, name, query, signal) {
  return run.series.includes(name) ? api.figure(String(run.id), "series", { ...query, q: name, rows: 1 }, signal) : Promise.resolve(null);
}

/** @type {import("../../charts/lanes/lane.js").LaneOptions["load"]} */
const loadCost = async ({ run, state, range }, columns, signal) => {
  const query = { ...range, columns, rank: state.rank ?? "all" };
  return costAnswer(await Promise.all(Object.keys(COSTS).map((name) => readSeries(run, name, query, signal))));
};

/** @param {LinesModel} model @param {number} step */
function readout({ series, meta }, step) {
  const reach = Math.max(MEASURED_EVERY, meta.steps_per_column);
  const said = series.flatMap((one, i) => {
    const value = valueAt(one, step, reach);
    return value === null ? [] : `${Object.values(COSTS)[i].split(",")[0]} ${seconds(value / 1000)}`;
  });
  return said.join(", ") || "not measured";
}

function legend() {
  const item = (/** @type {string} */ look, /** @type {string} */ text) => el("span", { class: "legend-item" }, el("span", { class: "swatch is-line", "data-look": look, "aria-hidden": "true" }), text);
  return el("div", { class: "legend lane-legend" }, item("accent", "host: what the training thread waits for"), item("second", "device: kernels of the agent, beside the training's or between them"));
}

/** @type {import("../../charts/lanes/lane_specs.js").LaneSpec} */
const AGENT_COST = {
  name: "agent_cost",
  title: "Time of the agent in a step",
  unit: "ms",
  empty: "It was not measured in these steps: one in 17 is.",
  plotHeight: () => 120,
  read: readLines,
  isEmpty: (/** @type {LinesModel} */ { series }) => !series.some((one) => points(one).length),
  draw: plainLines({ colours: ["accent", "second"], unit: " ms", fromZero: true }),
  readout,
  legend,
};

// The agent's own time, from the series that it sends: as lines in milliseconds, and as its share of a step.

/** @typedef {import("../../types.js").FigureAnswer} FigureAnswer */

/** Series -> what it is called. The host's time holds up the training thread, the device's its stream. */
const COSTS = { agent_time_s: "host, ms", agent_device_time_s: "device, ms" };

/** @param {FigureAnswer | null} answer of one series @returns {{x: number[], y: number[]}} */
function pointsOf(answer) {
  const trace = answer?.figure.data[0] ?? {};
  return { x: Array.from(decode(trace.x)), y: Array.from(decode(trace.y)) };
}

/** One figure of several series, in milliseconds. @param {(FigureAnswer | null)[]} answers in the order of `COSTS`, null where a series was never sent @returns {FigureAnswer} */
export function costAnswer(answers) {
  const first = /** @type {FigureAnswer} */ (answers.find((answer) => answer !== null));
  const data = Object.values(COSTS).map((name, i) => {
    const { x, y } = pointsOf(answers[i]);
    return { type: "scatter", mode: "lines", name, x, y: y.map((s) => s * 1000) };
  });
  return { figure: { data, layout: {} }, meta: { ...first.meta, nonfinite_steps: [] } };
}

/**
 * Of the steps that were measured: the median time of the agent, and of its share of the step; null where none was.
 * @param {FigureAnswer | null} cost @param {FigureAnswer | null} whole the steps' own time; both of single steps
 * @returns {{time_s: number, share: number | null, steps: number} | null}
 */
export function usualCost(cost, whole) {
  const spent = pointsOf(cost);
  if (!spent.x.length) return null;
  const took = pointsOf(whole);
  const stepTime = new Map(took.x.map((step, i) => [step, took.y[i]]));
  const shares = spent.x.flatMap((step, i) => {
    const all = stepTime.get(step);
    return all ? [spent.y[i] / all] : [];
  });
  return { time_s: median(spent.y), share: shares.length ? median(shares) : null, steps: spent.x.length };
}

/** @param {number[]} values at least one */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// What the agents said of themselves, as tables; each with a line in its place where there is nothing to say.

/** @typedef {import("../../types.js").PageContext} PageContext */
/** @typedef {import("./agent_text.js").AgentGroup} AgentGroup */
/** @typedef {import("./agent_text.js").Dropped} Dropped */
/** @typedef {import("./agent_text.js").Account} Account */

/** Rows drawn at most. */
const MOST = 100;
const MOST_LETTERS = 160;

/** @param {string} text @param {number} [length] */
const long = (text, length = MOST_LETTERS) => el("span", { class: "agent-long", title: text.length > length ? text : null }, clip(text, length));

/** A sentence. @param {string} text */
const wide = (text) => el("span", { class: "breaks", title: text.length > MOST_LETTERS ? text : null }, clip(text, MOST_LETTERS));

/** @param {readonly string[]} all @param {string} noun */
const few = (all, noun) => (all.length > 3 ? el("span", { title: clip(all.join(", "), 2000) }, plural(all.length, noun)) : all.map((one) => clip(one, 60)).join(", ") || "not known");

const none = () => el("span", { class: "muted" }, "none");

/** @param {readonly string[]} all */
const listed = (all) => (all.length ? long(all.map((one) => clip(one, 60)).join(", ")) : none());

/**
 * A table, and what to say instead of an empty one.
 * @template R
 * @param {PageContext} ctx @param {string} title @param {string} nothing @param {readonly import("../../widgets/sorted_table.js").Column<R>[]} columns @param {{caption: string, name: string}} options
 */
function tableOr(ctx, title, nothing, columns, options) {
  const table = createSortedTable(ctx, columns, { ...options, most: MOST });
  const empty = el("p", { class: "panel agent-nothing" }, nothing);
  return {
    element: el("section", { class: "agent-section", "aria-label": title }, el("h2", { class: "part-title" }, title), empty, table.element),
    /** @param {readonly R[]} rows */
    update(rows) {
      empty.hidden = rows.length > 0;
      table.update(rows);
    },
  };
}

/** @param {PageContext} ctx */
const createGroupTable = (ctx) =>
  tableOr(
    ctx,
    "Agents",
    "No agent has attached.",
    [
      { name: "Ranks", by: (/** @type {AgentGroup} */ row) => row.ranks[0], show: (row) => long(ranksText(row.ranks)) },
      { name: "State", by: (row) => row.state, show: (row) => stateBadge(row.state) },
      { name: "Hosts", by: (row) => row.hosts.length, show: (row) => few(row.hosts, "host") },
      { name: "Devices", by: (row) => row.devices.length, show: (row) => few(row.devices, "device") },
      { name: "Records", by: (row) => row.level, show: (row) => (row.level ? long(row.level) : "all it was asked to") },
      { name: "Dropped", by: (row) => row.droppedCount, show: (row) => (row.dropped.length ? long(`${count(row.droppedCount)}: ${row.dropped.join(", ")}`) : none()), isNumber: true },
      { name: "Faults", by: (row) => row.faults.length, show: (row) => listed(row.faults) },
      { name: "Not observed", by: (row) => row.notObserved, show: (row) => (row.notObserved ? plural(row.notObserved, "module") : none()), isNumber: true },
      { name: "Not fused", by: (row) => row.notFused.length, show: (row) => listed(row.notFused) },
    ],
    { caption: "Ranks whose agents say the same are one row, the worst first", name: "agent-groups" },
  );

/** @param {PageContext} ctx @param {{title: string, nothing: string, first: string, name: string, caption: string, hasWhy: boolean}} words */
const totalsTable = (ctx, { title, nothing, first, name, caption, hasWhy }) =>
  tableOr(
    ctx,
    title,
    nothing,
    [
      { name: first, by: (/** @type {Dropped} */ row) => row.reason, show: (row) => el("code", {}, clip(row.reason, MOST_LETTERS)) },
      { name: "Times", by: (row) => row.total, show: (row) => count(row.total), isNumber: true },
      { name: "Ranks", by: (row) => row.ranks.length, show: (row) => long(ranksText(row.ranks)) },
      { name: "Most on", by: (row) => row.most, show: (row) => `rank ${row.worst}: ${count(row.most)}` },
      ...(hasWhy ? [{ name: "Which means", show: (/** @type {Dropped} */ row) => wide(row.why || "not known to this page") }] : []),
    ],
    { caption, name },
  );

/** @param {PageContext} ctx */
const createDroppedTable = (ctx) =>
  totalsTable(ctx, { title: "Dropped", nothing: "Nothing was dropped: all that was recorded has been sent, or waits to be.", first: "Reason", name: "agent-dropped", caption: "Records that are lost, by reason, since each agent attached", hasWhy: true });

/** @param {PageContext} ctx */
const createFaultTable = (ctx) =>
  totalsTable(ctx, { title: "Faults", nothing: "No agent has failed anywhere.", first: "Place", name: "agent-faults", caption: "Where the agent itself failed; it goes on, and leaves a place that fails too often", hasWhy: false });

/** @param {PageContext} ctx @param {{title: string, nothing: string, what: string, name: string, caption: string}} words */
const accountTable = (ctx, { title, nothing, what, name, caption }) =>
  tableOr(
    ctx,
    title,
    nothing,
    [
      { name: what, by: (/** @type {Account} */ row) => row.what, show: (row) => el("span", { class: "name", title: row.what.length > 80 ? row.what : null }, clip(row.what || "(the model)", 80)) },
      { name: "Why", by: (row) => row.why, show: (row) => wide(row.why) },
      { name: "Ranks", by: (row) => row.ranks.length, show: (row) => long(ranksText(row.ranks)) },
    ],
    { caption, name },
  );

/** @param {PageContext} ctx */
const createUnobservedTable = (ctx) =>
  accountTable(ctx, { title: "Not observed", nothing: "Every module that was to be observed is.", what: "Module", name: "agent-not-observed", caption: "Modules whose values nobody sees: not to be taken for clean ones" });

/** @param {PageContext} ctx */
const createUnfusedTable = (ctx) =>
  accountTable(ctx, { title: "Not fused", nothing: "Every device is read in the fastest way there is for it, as far as agents say.", what: "Device", name: "agent-not-fused", caption: "Devices that are read more slowly than they could be" });
