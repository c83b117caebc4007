// The Experts page: how routers of a mixture of experts spread tokens, by router and by expert over the steps.

import * as api from "../../api/client.js";
import { onward, runPath, shownRange } from "../../api/url_state.js";
import { createPlainLanes } from "../../charts/lanes/lane_group.js";
import { LANES } from "../../charts/lanes/lane_specs.js";
import { loadText } from "../../charts/statistics.js";
import { el, link } from "../../format/dom.js";
import { clip, count, magnitude, plural, rankName } from "../../format/numbers.js";
import { percent } from "../../format/units.js";
import { pasteBlock } from "../../widgets/controls/copy_button.js";
import { createRankPicker } from "../../widgets/controls/filters.js";
import { createRangeBar } from "../../widgets/controls/range_bar.js";
import { createNothing } from "../../widgets/detail_cards.js";
import { runPage } from "../../widgets/run_page.js";
import { createSortedTable } from "../../widgets/tables/sorted_table.js";
import { createVerdict } from "../../widgets/verdict.js";

/** @typedef {import("../../types.js").Router} Router */
/** @typedef {import("../../types.js").PageContext} PageContext */

const HINTS = [
  "Load: tokens of an expert over the mean of all experts of its router. MaxVio is the largest load less 1.",
  "Tokens of the chosen ranks and of the steps of a column are added up. A row of the first figure chooses the router of the second.",
];
/** Left margin: names of routers stand there. Pixels. */
const LABELS = 190;

/** @param {PageContext} ctx @param {() => void} refetch @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx, refetch) {
  const verdict = createVerdict();
  const nothing = createNothing("No router of experts was recorded");
  const rank = createRankPicker(ctx, { all: true, merged: "added up" });
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))), () => LABELS);
  /** @type {Router | null} */
  let shown = null;
  const ranks = (/** @type {import("../../charts/lanes/lane.js").View} */ { state }) => ({ rank: state.rank ?? "all" });
  const entries = [
    { spec: LANES.routers, options: { query: ranks, left: LABELS } },
    { spec: LANES.experts, options: { query: (/** @type {any} */ view) => ({ ...ranks(view), tensor: shown?.tensor ?? 0 }), left: LABELS, title } },
  ];
  /** @param {import("../../charts/lanes/lane.js").Lane} lane @param {number | null} row */
  const choose = (lane, row) => {
    const tensor = row === null ? null : lane.rows()[row]?.tensor ?? null;
    if (lane.spec === LANES.routers && tensor !== null) ctx.setState({ tensor });
  };
  const lanes = createPlainLanes(ctx, entries, { pick: (lane, { row }) => choose(lane, row), pickLabel: choose }, refetch);
  const table = createRouterTable(ctx);
  const body = el("div", {}, el("div", { class: "filters" }, rank.element), range.element, lanes.element, table.element);
  const element = el("div", {}, verdict.element, nothing.element);

  /** @param {import("../../charts/lanes/lane.js").View} view */
  function title({ state }) {
    return shown ? `Load of the ${plural(shown.experts, "expert")} of ${clip(shown.name || "(model)")}, ${rankName(state.rank)}` : LANES.experts.title;
  }

  return {
    element,
    async update(run, signal) {
      range.update(run);
      rank.update(run.ranks.map((one) => one.rank), ctx.state.rank);
      const steps = shownRange(ctx.state, run);
      const { routers } = await api.experts(ctx.params.id, { ...steps, rank: ctx.state.rank ?? "all" }, signal);
      nothing.update(routers.length ? null : whyNothing());
      verdict.element.hidden = routers.length === 0;
      if (!routers.length) return body.remove();
      if (!body.isConnected) element.append(body);
      shown = chosen(routers, ctx.state.tensor);
      verdict.update(expertsVerdict(routers, run.verdict.findings));
      table.update(routers.map((router) => ({ ...router, view: onward(ctx.state), isShown: router === shown })));
      await lanes.update({ run, state: ctx.state, range: steps }, signal);
    },
    destroy: lanes.destroy,
  };
}

/** The one asked for, else that with the largest load. @param {readonly Router[]} routers @param {number | null} tensor */
export function chosen(routers, tensor) {
  const worst = routers.reduce((most, one) => ((one.largest ?? 0) > (most.largest ?? 0) ? one : most));
  return routers.find((one) => one.tensor === tensor) ?? worst;
}

/** @returns {(string | Node)[]} */
function whyNothing() {
  return [
    "Routers of Transformers, torchtitan, Megatron and DeepSpeed are known by themselves, where their outputs are read. Name others when you attach:",
    pasteBlock('rangewatch.attach(model, optimizer, routers=["blocks.*.router"])', "The line that attaches"),
  ];
}

const RULES = ["expert_collapse", "dead_expert", "overloaded_expert"];

/** What is open of experts, whichever steps are shown; else of these steps. @param {readonly Router[]} routers @param {import("../../types.js").Verdict["findings"]} [findings] of the run @returns {import("../../types.js").Verdict} */
export function expertsVerdict(routers, findings = []) {
  const open = findings.find(({ rule }) => RULES.includes(rule));
  const routed = routers.filter((router) => router.routed > 0);
  if (!routed.length && !open) return { level: "empty", parts: [["strong", "No token was routed in these steps."]], links: [] };
  const unused = routed.reduce((sum, { unused: n }) => sum + n, 0);
  const all = routed.reduce((sum, { experts: n }) => sum + n, 0);
  const lead = unused ? `${count(unused)} of ${plural(all, "expert")} got no token in these steps.` : `All ${plural(all, "expert")} of ${plural(routed.length, "router")} got tokens.`;
  const rest = routed.length ? ` ${largestLoad(chosen(routed, null))}` : "";
  if (open) return { level: open.severity === "critical" ? "critical" : "warning", parts: [["strong", open.summary ?? ""], ["text", rest]], links: [] };
  return { level: unused ? "empty" : "ok", parts: [["strong", lead], ["text", rest]], links: [] };
}

/** @param {Router} worst */
const largestLoad = (worst) => `The largest load is that of expert ${worst.largest_expert} of ${clip(worst.name || "(model)")}: ${loadText(worst.largest ?? 0)}.`;

/** @param {PageContext} ctx */
function createRouterTable(ctx) {
  /** @typedef {Router & {view: ReturnType<typeof onward>, isShown: boolean}} Row */
  const pick = (/** @type {Row} */ { name, tensor, isShown }) => el("button", { type: "button", class: "quiet", "aria-pressed": String(isShown), title: name, click: () => ctx.setState({ tensor }) }, clip(name || "(model)"));
  const logits = (/** @type {Row} */ { logits: tensor, logit_amax: amax, view }) =>
    tensor === null ? "not seen" : link(runPath(ctx.params.id, "tensor", { ...view, tensor }), {}, magnitude(amax));
  return createSortedTable(
    ctx,
    [
      { name: "Router", show: pick },
      { name: "Experts", by: (row) => row.experts, show: (row) => (row.top_k ? `${count(row.top_k)} of ${count(row.experts)}` : count(row.experts)), isNumber: true, help: "How many each token is given to, of how many" },
      { name: "Tokens", by: (row) => row.routed, show: (row) => count(row.routed), isNumber: true, help: "That were routed in these steps" },
      { name: "MaxVio", by: (row) => row.largest, show: (row) => (row.largest === null ? "" : `${(row.largest - 1).toFixed(2)} (expert ${row.largest_expert})`), isNumber: true, help: "Largest load over the mean, less 1" },
      { name: "Without tokens", by: (row) => row.unused, show: (row) => count(row.unused), isNumber: true, help: "Experts that got no token in these steps" },
      { name: "Dropped", by: (row) => row.dropped_fraction, show: (row) => (row.dropped_fraction === null ? "not seen" : percent(row.dropped_fraction)), isNumber: true, help: "Of the places that tokens asked for, those that an expert had no room for" },
      { name: "Entropy", by: (row) => row.entropy_bits, show: (row) => (row.entropy_bits === null ? "not seen" : `${row.entropy_bits.toFixed(2)} of ${Math.log2(row.experts).toFixed(2)} bits`), isNumber: true, help: "Of the softmax of a token's router logits, on average, and what it is at most" },
      { name: "Largest logit", by: (row) => row.logit_amax, show: logits, isNumber: true, help: "The largest magnitude of the router's logits" },
    ],
    { caption: "Routers in call order", name: "experts-routers" },
  );
}

export default runPage({
  id: "experts",
  title: "Experts",
  key: "x",
  help: "How routers of a mixture of experts spread tokens",
  build,
});
