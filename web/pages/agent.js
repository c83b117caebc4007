// Agent: what Rangewatch's own part in the training does and costs, by rank: what it leaves out, and where it failed.

import { usualCost } from "../agent_cost.js";
import { accounts, agentGroups, agentVerdict, totals } from "../agent_words.js";
import { AGENT_COST, hasCost, loadCost, readSeries } from "../components/agent_cost_lane.js";
import { createDroppedTable, createFaultTable, createGroupTable, createUnfusedTable, createUnobservedTable } from "../components/agent_tables.js";
import { createFactCards } from "../components/fact_cards.js";
import { createRankPicker } from "../components/filters.js";
import { createLaneGroup } from "../components/lane_group.js";
import { createRangeBar } from "../components/range_bar.js";
import { mountRunPage } from "../components/run_page.js";
import { createVerdict } from "../components/verdict.js";
import { el, replace } from "../dom.js";
import { count, plural, seconds } from "../format.js";
import { percent } from "../quantities.js";
import { shownRange } from "../url_state.js";

/** @typedef {import("../types.js").Run} Run */
/** @typedef {ReturnType<typeof usualCost>} Usual */

/** What it costs now is read of so many of the newest steps, each by itself. */
const NEWEST = 1000;

const HINTS = [
  "The agent measures its own time in one step of 17: that of its hooks on the training thread, and that of its kernels on the device.",
  "What torch needs to come to a hook is not in it: some microseconds a hook.",
  "Drag over the lane to see fewer steps, double click to see all.",
];

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../components/run_page.js").RunView} */
function build(ctx, refetch) {
  const verdict = createVerdict();
  const cards = createFactCards();
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

/** @param {import("../components/lane.js").View} view */
const query = ({ state }) => ({ rank: state.rank ?? "all" });

/** On the training thread, mean of the ranks. @param {Run} run @param {AbortSignal} signal */
async function costNow(run, signal) {
  const range = shownRange({ start: null, stop: null, last: NEWEST }, run);
  const [cost, whole] = await Promise.all(["agent_time_s", "step_time_s"].map((name) => readSeries(run, name, { ...range, columns: NEWEST }, signal)));
  return usualCost(cost, whole);
}

/** @param {Run} run @param {Usual} usual @returns {import("../components/cards.js").Card[]} */
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

/** @type {import("../types.js").Page} */
export default {
  id: "agent",
  title: "Agent",
  path: "/runs/{id}/agent",
  mount: (root, ctx) => mountRunPage(root, ctx, "Agent", (refetch) => build(ctx, refetch), { needsStep: false }),
};
