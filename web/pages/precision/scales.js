// The Scales page: how the scales of operands in low precision fit what they scale, over the steps and by operand.

import * as api from "../../api/client.js";
import { onward, runPath, shownRange } from "../../api/url_state.js";
import { createPlainLanes } from "../../charts/lanes/lane_group.js";
import { LANES } from "../../charts/lanes/lane_specs.js";
import { createStatisticLegend } from "../../charts/legend.js";
import { stateLabel, valueText } from "../../charts/statistics.js";
import { el, link } from "../../format/dom.js";
import { clip, count, magnitude, plural } from "../../format/numbers.js";
import { percent } from "../../format/units.js";
import { pasteBlock } from "../../widgets/controls/copy_button.js";
import { createNameFilter, createRankPicker } from "../../widgets/controls/filters.js";
import { createRangeBar } from "../../widgets/controls/range_bar.js";
import { createNothing } from "../../widgets/detail_cards.js";
import { runPage } from "../../widgets/run_page.js";
import { createSortedTable } from "../../widgets/tables/sorted_table.js";
import { createVerdict } from "../../widgets/verdict.js";

/** @typedef {import("../../types.js").ScaledOperand} Operand */
/** @typedef {import("../../types.js").PageContext} PageContext */

const KINDS = ["scaled_input", "scaled_weight", "scaled_grad_output"];
const ROLES = { scaled_input: "input", scaled_weight: "weight", scaled_grad_output: "gradient of the output" };
const STATISTIC = "scaled_headroom_bits";
/** Rows of the table. */
const MOST = 200;
const HINTS = [
  "Scaled headroom: bits between the largest magnitude of an operand and what its scale has room for. 0 is a scale that fits; below 0 the largest values saturate.",
  "Of several steps and ranks the worst is shown. A click on a name opens that operand over time.",
];
const RULES = ["scale_stale", "scale_too_small"];

/** @param {PageContext} ctx @param {() => void} refetch @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx, refetch) {
  const verdict = createVerdict();
  const nothing = createNothing("No scale of low precision was read in these steps");
  const [rank, name] = [createRankPicker(ctx, { all: true }), createNameFilter(ctx)];
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const query = (/** @type {import("../../charts/lanes/lane.js").View} */ { state }) => ({ rank: state.rank ?? "all", q: state.q, kind: KINDS, statistic: STATISTIC });
  const spec = { ...LANES.layers, title: "Scaled headroom by operand" };
  /** @param {import("../../charts/lanes/lane.js").Lane} lane @param {number | null} row */
  const open = (lane, row) => {
    const tensor = row === null ? null : lane.rows()[row]?.tensor ?? null;
    if (tensor !== null) ctx.navigate(runPath(ctx.params.id, "tensor", { ...onward(ctx.state), tensor }));
  };
  const lanes = createPlainLanes(ctx, [{ spec, options: { query } }], { pick: (lane, { row }) => open(lane, row), pickLabel: open }, refetch);
  const legend = createStatisticLegend();
  const table = createOperandTable(ctx);
  const often = el("p", { class: "muted" });
  const body = el("div", {}, often, el("div", { class: "filters" }, rank.element, name.element, name.problem), name.help, range.element, lanes.element, legend.element, table.element);
  const element = el("div", {}, verdict.element, nothing.element);
  legend.update({ name: STATISTIC, title: "Scaled headroom", scale: "room", worst: "least", worst_title: "least scaled headroom", is_full_set: false, low: -8, high: 8 });

  return {
    element,
    async update(run, signal) {
      range.update(run);
      rank.update(run.ranks.map((one) => one.rank), ctx.state.rank);
      name.update();
      const steps = shownRange(ctx.state, run);
      const { operands, of, every } = await api.scales(ctx.params.id, { ...steps, rank: ctx.state.rank ?? "all", q: ctx.state.q }, signal);
      const isEmpty = operands.length === 0 && ctx.state.q === "";
      nothing.update(isEmpty ? whyNothing() : null);
      verdict.element.hidden = isEmpty;
      if (isEmpty) return body.remove();
      if (!body.isConnected) element.append(body);
      often.textContent = howOften(every);
      verdict.update(scalesVerdict(operands, of, run.verdict.findings));
      table.update(operands.map((operand) => ({ ...operand, view: onward(ctx.state) })));
      lanes.element.hidden = operands.every((one) => one.tensor === null);
      await lanes.update({ run, state: ctx.state, range: steps }, signal);
    },
    destroy() {
      name.destroy();
      legend.destroy();
      lanes.destroy();
    },
  };
}

/** @returns {(string | Node)[]} */
function whyNothing() {
  return [
    "Scales are read of torchao's float8, MX and NVFP4 layers and of TransformerEngine's modules, where these cast in eager mode. Calls of torch._scaled_mm of your own are read when you ask for it:",
    pasteBlock('rangewatch.attach(model, optimizer, scales="all")', "The line that attaches"),
  ];
}

/** @param {number | null} every steps from one reading to the next */
export function howOften(every) {
  if (every === null) return "";
  return every === 1 ? "Scales are read at each step." : `Scales are read at one step in ${count(every)}, the others have no cell: what is shown is of steps that were read.`;
}

/** Nothing is known of how its scale fits. @param {Operand} operand */
const isUnread = ({ state }) => state === "unknown" || state === "not_observed";

/** @param {number} fitting @param {string} formats @param {boolean} isAll there are no others */
function fitText(fitting, formats, isAll) {
  if (fitting === 1) return `The scale of 1 operand in ${formats} fits.`;
  const these = !isAll ? plural(fitting, "operand") : fitting === 2 ? "both operands" : `all ${plural(fitting, "operand")}`;
  return `The scales of ${these} in ${formats} fit.`;
}

/** What is open of scales, whichever steps are shown; else of these steps. @param {readonly Operand[]} operands @param {number} of @param {import("../../types.js").Verdict["findings"]} [findings] of the run @returns {import("../../types.js").Verdict} */
export function scalesVerdict(operands, of, findings = []) {
  const open = findings.find(({ rule }) => RULES.includes(rule));
  const known = operands.filter((one) => !isUnread(one));
  const unknown = operands.length - known.length;
  const [small, stale] = ["scale_too_small", "scale_stale"].map((state) => known.filter((one) => one.state === state));
  const reasons = [...new Set(operands.filter(isUnread).map((one) => one.unknown.replace(/^scales: /, "") || "no reading in these steps"))].join("; ");
  const rest = unknown ? ` Of ${plural(unknown, "operand")} nothing is read: ${clip(reasons)}.` : "";
  const more = of > operands.length ? ` The first ${count(operands.length)} of ${count(of)} are listed.` : "";
  if (open) return { level: open.severity === "critical" ? "critical" : "warning", parts: [["strong", open.summary ?? ""], ["text", rest + more]], links: [] };
  if (!operands.length) return { level: "empty", parts: [["strong", "No operand that is so named was cast by scales in these steps."]], links: [] };
  if (!known.length) return { level: "empty", parts: [["strong", "No scale was read in these steps."], ["text", rest + more]], links: [] };
  const formats = [...new Set(known.map(({ format }) => format))].join(", ");
  const bad = [small.length && `the scale of ${plural(small.length, "operand")} was too small`, stale.length && `that of ${plural(stale.length, "operand")} stale`].filter(Boolean).join(", ");
  const lead = bad ? `In these steps ${bad}.` : fitText(known.length, formats, unknown === 0 && !more);
  return { level: bad || unknown || more ? "empty" : "ok", parts: [["strong", lead], ["text", rest + more]], links: [] };
}

/** @param {Operand} operand */
const stateText = ({ state }) => (state === "value" ? "fits" : stateLabel(state));

/** @param {Operand} operand */
const room = ({ headroom_bits: value }) => (value === null ? "not read" : valueText({ name: STATISTIC, title: "", scale: "room", worst: "least", worst_title: "", is_full_set: false, low: -8, high: 8 }, value));

/** @param {Operand} operand */
function scaleRange({ scale_log2: range }) {
  if (!range) return "not read";
  const [low, high] = range.map((value) => value.toFixed(1));
  return low === high ? `2^${low}` : `2^${low} to 2^${high}`;
}

/** @param {Operand} operand */
const historyText = ({ history, history_age: age }) => (history ? `entry ${age ?? "?"} of ${count(history)}` : "none");

/** @param {Operand} operand */
const label = ({ name, kind, index }) => `${name || "(model)"} ${ROLES[/** @type {keyof typeof ROLES} */ (kind)] ?? kind}${index ? ", backward" : ""}`;

/** @param {PageContext} ctx */
function createOperandTable(ctx) {
  /** @typedef {Operand & {view: ReturnType<typeof onward>}} Row */
  const named = (/** @type {Row} */ row) => (row.tensor === null ? clip(label(row)) : link(runPath(ctx.params.id, "tensor", { ...row.view, tensor: row.tensor }), { class: "name breaks", title: label(row) }, clip(label(row))));
  const share = (/** @type {number | null} */ value) => (value === null ? "not counted" : percent(value));
  return createSortedTable(
    ctx,
    [
      { name: "Operand", show: named },
      { name: "Format", by: (/** @type {Row} */ row) => row.format, show: (/** @type {Row} */ row) => [row.format, row.granularity && `by ${row.granularity}`].filter(Boolean).join(" "), help: "What has a scale of its own" },
      { name: "State", by: (/** @type {Row} */ row) => row.state, show: (/** @type {Row} */ row) => el("span", { class: row.state.startsWith("scale_") ? "survives-not" : null, title: row.unknown || null }, stateText(row)) },
      { name: "Headroom", by: (/** @type {Row} */ row) => row.headroom_bits, show: room, isNumber: true, help: "Of the worst step and rank" },
      { name: "Scales", by: (/** @type {Row} */ row) => row.scale_log2?.[1] ?? null, show: scaleRange, isNumber: true, help: "Least and largest: what a stored number is multiplied by" },
      { name: "Amax history", by: (/** @type {Row} */ row) => row.history_age, show: historyText, isNumber: true, help: "Of delayed scaling, the entry that the scale is made of: 1 is the newest" },
      { name: "Saturated", by: (/** @type {Row} */ row) => row.saturated_fraction, show: (/** @type {Row} */ row) => share(row.saturated_fraction), isNumber: true },
      { name: "To zero", by: (/** @type {Row} */ row) => row.flushed_fraction, show: (/** @type {Row} */ row) => share(row.flushed_fraction), isNumber: true },
      { name: "Largest", by: (/** @type {Row} */ row) => row.amax, show: (/** @type {Row} */ row) => magnitude(row.amax), isNumber: true, help: "Magnitude before the cast" },
      { name: "Cast by", by: (/** @type {Row} */ row) => row.source, show: (/** @type {Row} */ row) => [row.source, row.recipe].filter(Boolean).join(": ") },
    ],
    { caption: "Operands in call order, the worst of these steps and ranks", name: "scales-operands", most: MOST },
  );
}

export default runPage({
  id: "scales",
  title: "Scales",
  key: "f",
  help: "How the scales of FP8, MX and NVFP4 operands fit what they scale",
  build,
});
