// The Agent page: what Rangewatch's agent does and costs on each rank, what it leaves out, and where it failed.

import * as api from "../../api/client.js";
import { shownRange } from "../../api/url_state.js";
import { createLaneGroup } from "../../charts/lanes/lane_group.js";
import { lineItem } from "../../charts/legend.js";
import { plainLines, points, readLines, valueAt } from "../../charts/lines.js";
import { el, replace } from "../../format/dom.js";
import { clip, count, plural, seconds } from "../../format/numbers.js";
import { percent } from "../../format/units.js";
import { createDetailCards } from "../../widgets/detail_cards.js";
import { createRankPicker } from "../../widgets/controls/filters.js";
import { createRangeBar } from "../../widgets/controls/range_bar.js";
import { runPage } from "../../widgets/run_page.js";
import { createSortedTable } from "../../widgets/tables/sorted_table.js";
import { stateBadge } from "../../widgets/states/state_badge.js";
import { createVerdict } from "../../widgets/verdict.js";
import { accounts, agentGroups, agentVerdict, hasTrouble, ranksText, totals, unobservedText } from "./agent_text.js";

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
  const more = el("details", { class: "agent-more", toggle: () => void (more.open && cost.parentNode !== place && refetch()) }, el("summary", {}, "Overhead by step, and every rank"));
  const cost = el("div", {}, el("div", { class: "filters" }, rank.element), range.element, group.element);
  const place = el("div", {}); // what is never drawn is not in the page
  const noCost = el("p", { class: "panel agent-nothing", "data-testid": "no-cost" });
  const tables = { groups: createGroupTable(ctx), dropped: createDroppedTable(ctx), faults: createFaultTable(ctx), unobserved: createUnobservedTable(ctx), unfused: createUnfusedTable(ctx) };
  more.append(cards.element, place, noCost, ...Object.values(tables).map((table) => table.element));
  const element = el("div", {}, verdict.element, more);
  /** Whether there was something to say, which opens it once. */
  let isTroubled = false;

  /** @param {Run} run @param {Usual} usual */
  function show(run, usual) {
    verdict.update(agentVerdict(run.ranks, usual));
    const isNow = hasTrouble(run.ranks);
    if (isNow && !isTroubled) more.open = true;
    isTroubled = isNow;
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
      noCost.hidden = isMeasured;
      noCost.textContent = run.last_step === null ? "No step has arrived, so what the agent costs is not known." : "These agents have not reported what they cost: the first step that is measured may be yet to come, or they are older than that.";
      show(run, isMeasured ? await costNow(run, signal) : null);
      const isSeen = isMeasured && more.open; // a lane that is folded has no width
      if (isSeen !== (cost.parentNode === place)) replace(place, isSeen && cost);
      if (!isSeen) return;
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
  const time = usual && { title: "Agent overhead per step", value: seconds(usual.time_s), under: `${usual.share === null ? "" : `${percent(usual.share)} of the step, `}median of ${plural(usual.steps, "measured step")}` };
  return [
    time ?? { title: "Agent overhead per step", value: "not measured" },
    { title: "Ranks with an agent", value: count(run.ranks.length), under: `of ${count(run.world_size)}` },
    { title: "Ranks that record less", value: lowered ? plural(lowered, "rank") : "none", level: lowered ? "warning" : undefined },
    { title: "Dropped", value: dropped ? plural(dropped, "record") : "none", level: dropped ? "warning" : undefined },
    { title: "Faults", value: faults ? count(faults) : "none", level: faults ? "critical" : undefined },
    { title: "Not observed", value: unseen ? unobservedText(unseen) : "none", level: unseen ? "warning" : undefined },
  ];
}

export default runPage({
  id: "agent",
  title: "Agent",
  key: "t",
  help: "What recording itself costs and drops, by rank",
  needsStep: false,
  build,
});

// The agent's own time over the steps, as a lane: on the training thread, and on the device.

/** @typedef {import("../../charts/lines.js").LinesModel} LinesModel */

/** One step in so many is measured (the agent's `limits.COST_EVERY`): a value stands for those near it. Steps. */
const MEASURED_EVERY = 17;

/** @param {readonly string[]} series of the run */
const hasCost = (series) => Object.keys(COSTS).some((name) => series.includes(name));

/** A series of some steps; null where the run has none of that name. @param {Run} run @param {string} name @param {import("../../api/client.js").Query} query @param {AbortSignal} signal */
function readSeries(run, name, query, signal) {
  return run.series.includes(name) ? api.figure(String(run.id), "series", { ...query, q: name, rows: 1 }, signal).then(readLines) : Promise.resolve(null);
}

/** @type {import("../../charts/lanes/lane.js").LaneOptions["load"]} */
const loadCost = async ({ run, state, range }, columns, signal) => {
  const query = { ...range, columns, rank: state.rank ?? "all" };
  return costLines(await Promise.all(Object.keys(COSTS).map((name) => readSeries(run, name, query, signal))));
};

/** @param {LinesModel} model @param {number} step */
function readout({ series, meta }, step) {
  const reach = Math.max(MEASURED_EVERY, meta.steps_per_column);
  const values = series.flatMap((one, i) => {
    const value = valueAt(one, step, reach);
    return value === null ? [] : `${Object.values(COSTS)[i].split(",")[0]} ${seconds(value / 1000)}`;
  });
  return values.join(", ") || "not measured";
}

function legend() {
  return el("div", { class: "legend lane-legend" }, lineItem("accent", "host: what the training thread waits for"), lineItem("second", "device: kernels of the agent, beside the training's or between them"));
}

/** @type {import("../../charts/lanes/lane_specs.js").LaneSpec} */
const AGENT_COST = {
  name: "agent_cost",
  title: "Agent overhead per step",
  unit: "ms",
  empty: "It was not measured in these steps: one in 17 is.",
  plotHeight: () => 120,
  isEmpty: (/** @type {LinesModel} */ { series }) => !series.some((one) => points(one).length),
  draw: plainLines({ colours: ["accent", "second"], unit: " ms", fromZero: true }),
  readout,
  legend,
};

// The agent's own time, from the series that it sends: as lines in milliseconds, and as its share of a step.

/** Series -> what it is called. The host's time holds up the training thread, the device's its stream. */
const COSTS = { agent_time_s: "host, ms", agent_device_time_s: "device, ms" };

/** Both in milliseconds. @param {(LinesModel | null)[]} read in the order of `COSTS`, null where a series was never sent @returns {LinesModel} */
export function costLines(read) {
  const first = /** @type {LinesModel} */ (read.find((one) => one !== null));
  const series = Object.values(COSTS).map((name, i) => ({ name, x: read[i]?.series[0]?.x ?? [], y: Array.from(read[i]?.series[0]?.y ?? [], (s) => s * 1000) }));
  return { series, markSteps: [], meta: first.meta };
}

/**
 * Of the steps that were measured: the median time of the agent, and of its share of the step; null where none was.
 * @param {LinesModel | null} cost @param {LinesModel | null} whole the steps' own time; both of single steps
 * @returns {{time_s: number, share: number | null, steps: number} | null}
 */
export function usualCost(cost, whole) {
  const spent = points(cost?.series[0]);
  if (!spent.length) return null;
  const stepTime = new Map(points(whole?.series[0]).map(({ x, y }) => [x, y]));
  const shares = spent.flatMap(({ x, y }) => {
    const all = stepTime.get(x);
    return all ? [y / all] : [];
  });
  return { time_s: median(spent.map(({ y }) => y)), share: shares.length ? median(shares) : null, steps: spent.length };
}

/** @param {number[]} values at least one */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// What the agents report of themselves, as tables; those that are empty are not shown.

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
 * A table with its heading; neither where there is nothing to report.
 * @template R
 * @param {PageContext} ctx @param {string} title @param {readonly import("../../widgets/tables/sorted_table.js").Column<R>[]} columns @param {{caption: string, name: string}} options
 */
function titledTable(ctx, title, columns, options) {
  const table = createSortedTable(ctx, columns, { ...options, most: MOST });
  const element = el("section", { class: "agent-section", "aria-label": title }, el("h2", { class: "part-title" }, title), table.element);
  return {
    element,
    /** @param {readonly R[]} rows */
    update(rows) {
      element.hidden = rows.length === 0;
      table.update(rows);
    },
  };
}

/** @param {PageContext} ctx */
const createGroupTable = (ctx) =>
  titledTable(
    ctx,
    "Agents",
    [
      { name: "Ranks", by: (/** @type {AgentGroup} */ row) => row.ranks[0], show: (row) => long(ranksText(row.ranks)) },
      { name: "State", by: (row) => row.state, show: (row) => stateBadge(row.state) },
      { name: "Hosts", by: (row) => row.hosts.length, show: (row) => few(row.hosts, "host") },
      { name: "Devices", by: (row) => row.devices.length, show: (row) => few(row.devices, "device") },
      { name: "Records", by: (row) => row.level, show: (row) => (row.level ? long(row.level) : "everything") },
      { name: "Dropped", by: (row) => row.droppedCount, show: (row) => (row.dropped.length ? long(`${count(row.droppedCount)}: ${row.dropped.join(", ")}`) : none()), isNumber: true },
      { name: "Faults", by: (row) => row.faults.length, show: (row) => listed(row.faults) },
      { name: "Not observed", by: (row) => row.notObserved, show: (row) => (row.notObserved ? unobservedText(row.notObserved) : none()), isNumber: true },
      { name: "Not fused", by: (row) => row.notFused.length, show: (row) => listed(row.notFused) },
    ],
    { caption: "Ranks whose agents report the same are one row, the worst first", name: "agent-groups" },
  );

/** @param {PageContext} ctx @param {{title: string, first: string, name: string, caption: string, hasWhy: boolean}} texts */
const totalsTable = (ctx, { title, first, name, caption, hasWhy }) =>
  titledTable(
    ctx,
    title,
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
  totalsTable(ctx, { title: "Dropped", first: "Reason", name: "agent-dropped", caption: "Records that are lost, by reason, since each agent attached", hasWhy: true });

/** @param {PageContext} ctx */
const createFaultTable = (ctx) =>
  totalsTable(ctx, { title: "Faults", first: "Place", name: "agent-faults", caption: "Where the agent itself failed; it goes on, and leaves a place that fails too often", hasWhy: false });

/** @param {PageContext} ctx @param {{title: string, what: string, name: string, caption: string}} texts */
const accountTable = (ctx, { title, what, name, caption }) =>
  titledTable(
    ctx,
    title,
    [
      { name: what, by: (/** @type {Account} */ row) => row.what, show: (row) => el("span", { class: "name", title: row.what.length > 80 ? row.what : null }, clip(row.what || "(the model)", 80)) },
      { name: "Why", by: (row) => row.why, show: (row) => wide(row.why) },
      { name: "Ranks", by: (row) => row.ranks.length, show: (row) => long(ranksText(row.ranks)) },
    ],
    { caption, name },
  );

/** @param {PageContext} ctx */
const createUnobservedTable = (ctx) =>
  accountTable(ctx, { title: "Not observed", what: "Module or parameter", name: "agent-not-observed", caption: "Modules and parameters whose values are not recorded, which does not mean that they are clean" });

/** @param {PageContext} ctx */
const createUnfusedTable = (ctx) =>
  accountTable(ctx, { title: "Not fused", what: "Device", name: "agent-not-fused", caption: "Devices that are read more slowly than they could be" });
