// The parts of a comparison that are text: the runs with their lines, where they part, the tensors that differ first, and
// what was set otherwise.

import { runsPath } from "../../api/run_query.js";
import { runPath } from "../../api/url_state.js";
import { stateLabel } from "../../charts/statistics.js";
import { el, link } from "../../format/dom.js";
import { bits, clip, count, plural } from "../../format/numbers.js";
import { stateBadge } from "../../widgets/states/state_badge.js";
import { lineSwatch } from "./compare_charts.js";
import { TOLERANCES, formatCompare, optionOf, partingText } from "./compare_model.js";

/** @typedef {import("./compare_model.js").ComparedRun} ComparedRun */
/** @typedef {import("./compare_model.js").CompareQuery} CompareQuery */
/**
 * @typedef {object} DifferingTensor
 * @property {number} tensor
 * @property {string} label
 * @property {string} dtype
 * @property {string} other_dtype
 * @property {number | null} bits
 * @property {number | null} other_bits
 * @property {string} state
 * @property {string} other_state
 * @property {number | null} difference_bits
 */
/** @typedef {{other: number, matched: number, start: number, stop: number, step: number | null, count: number, steps_per_column: number, tensors: DifferingTensor[]}} DifferingTensors */
/** @typedef {{runs: ComparedRun[], tolerance: number, parting: import("./compare_model.js").Parting[], tensors: DifferingTensors | null, differences: {key: string, values: (string | null)[]}[], same: number, more: number}} Comparison */

/** Tensors shown of those that differ. */
const MOST_TENSORS = 12;

/** @param {Pick<ComparedRun, "title" | "name">} run */
const nameOf = ({ title, name }) => clip(title || name, 80);

/** For the head of a column. @param {Pick<ComparedRun, "title" | "name">} run */
const shortName = ({ title, name }) => clip(title || name, 26);

/** The runs, which line each has, and ways to take one away. @param {Comparison} found @param {CompareQuery} query */
export function legend({ runs }, query) {
  const items = runs.map((run, at) => {
    const rest = query.runs.filter((id) => id !== run.id);
    const away = runs.length > 2 ? [link(formatCompare({ ...query, runs: rest }), { class: "compare-away", "aria-label": `Compare without ${nameOf(run)}`, title: "Take it out" }, "×")] : [];
    const reach = run.last_step === null ? "no step yet" : `to step ${count(run.last_step)}`;
    return el("li", {}, lineSwatch(at), " ", link(runPath(run.id, ""), { class: "run-name", title: clip(run.name, 400) }, clip(run.title || run.name, 44)), " ", stateBadge(run.state), el("span", { class: "muted" }, ` ${reach}`), ...away);
  });
  return el("ul", { class: "compare-legend panel", "aria-label": "Runs" }, ...items);
}

/** @param {Comparison} found @param {CompareQuery} query */
export function partings(found, query) {
  const [first, ...others] = found.runs;
  const tolerance = TOLERANCES[optionOf(TOLERANCES, query.tolerance)];
  const items = found.parting.map((parting, i) => el("li", {}, lineSwatch(i + 1), " ", el("strong", {}, nameOf(others[i])), `: ${partingText(parting, tolerance)}`));
  return el("section", { class: "panel compare-text", "data-testid": "compare-parting" }, el("h2", {}, "Where they part"), el("p", { class: "muted" }, `Each against ${nameOf(first)}; the loss is the mean of the ranks.`), el("ul", {}, ...items));
}

/** @param {Comparison} found */
export function tensors({ runs: [first, second], tensors: found }) {
  if (!found || !second) return null;
  const { step, count: all, steps_per_column: per } = found;
  const way = (/** @type {string} */ text, /** @type {object} */ more = {}) => link(`${runPath(first.id, "layers")}?${new URLSearchParams({ against: `run:${second.id}`, ...more })}`, {}, text);
  const allLayers = el("p", {}, way("All layers of both, compared over all steps"));
  const title = el("h2", {}, "First to differ");
  const place = { class: "panel compare-text", "data-testid": "compare-tensors" };
  if (!found.matched) return el("section", place, title, el("p", {}, "The runs have no tensor of the same name and kind."));
  if (step === null) {
    const where = found.stop > found.start ? `in the steps ${count(found.start)}-${count(found.stop - 1)}` : "as they have no step in common";
    return el("section", place, title, el("p", {}, `No tensor's headroom differs ${where}, of ${plural(found.matched, "tensor")} that both have.`), allLayers);
  }
  const [culprit] = found.tensors;
  const at = per > 1 ? `steps ${count(step)}-${count(step + per - 1)}` : `step ${count(step)}`;
  const sentence = el("p", {}, `At ${at}, of ${plural(found.matched, "tensor")} in call order, `, el("code", {}, clip(culprit.label)), ` is the first whose headroom differs: ${held(culprit.bits, culprit.state)} and ${held(culprit.other_bits, culprit.other_state)}. ${all === 1 ? "No other differs there." : `${plural(all - 1, "other")} after it.`}`);
  const rows = found.tensors.slice(0, MOST_TENSORS).map((one) =>
    el("tr", {}, el("td", { class: "breaks" }, way(clip(one.label), { tensor: String(one.tensor) })), el("td", { class: "number" }, one.difference_bits === null ? "" : difference(-one.difference_bits)), el("td", { class: "number" }, held(one.bits, one.state)), el("td", { class: "number" }, held(one.other_bits, one.other_state)), el("td", {}, one.dtype === one.other_dtype ? one.dtype : `${one.dtype}, ${one.other_dtype}`)),
  );
  const heads = ["Tensor", "Difference", shortName(first), shortName(second), "Type"].map((text, i) => el("th", { scope: "col", class: i > 0 && i < 4 ? "number" : null }, text));
  const caption = el("caption", {}, `In call order, the first ${count(rows.length)} of ${count(all)}`);
  return el("section", place, title, sentence, el("div", { class: "table-scroll" }, el("table", { class: "dense compare-table" }, caption, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows))), allLayers);
}

/** Bits that the second run has more. @param {number} value */
const difference = (value) => `${value > 0 ? "+" : "−"}${bits(Math.abs(value))}`;

/** @param {number | null} value @param {string} state */
const held = (value, state) => (value === null || state === "nan" || state === "inf" ? stateLabel(state) : bits(value));

/** @param {Comparison} found */
export function settings({ runs, differences, same, more }) {
  const place = { class: "panel compare-text", "data-testid": "compare-settings" };
  const title = el("h2", {}, "Options and environment that differ");
  const equal = same ? `${plural(same, "option and setting", "options and settings")} that were reported are equal.` : "No options or environment were reported.";
  if (!differences.length) return el("section", place, title, el("p", {}, same ? `Nothing: all ${equal}` : equal));
  const heads = runs.map((run, at) => el("th", { scope: "col" }, lineSwatch(at), " ", shortName(run)));
  const rows = differences.map(({ key, values }) => el("tr", {}, el("th", { scope: "row", class: "breaks" }, key), ...values.map((value) => el("td", { class: "breaks" }, value === null ? el("span", { class: "muted" }, "not set") : clip(value)))));
  const rest = more ? [el("p", { class: "muted" }, `And ${count(more)} more.`)] : [];
  return el("section", place, title, el("div", { class: "table-scroll" }, el("table", { class: "dense compare-table" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Option or setting"), ...heads)), el("tbody", {}, ...rows))), ...rest, el("p", { class: "muted" }, `${equal} Of each run as its first rank has them.`));
}

/** Why there is nothing to compare, and the way to choose. @param {string} reason @param {readonly number[]} runs */
export const nothingToCompare = (reason, runs) =>
  el("section", { class: "panel state-panel", "data-testid": "empty-state" }, el("h1", {}, "Compare runs"), el("p", {}, reason), el("p", {}, link(runsPath({ picked: runs.slice(0, 8) }), {}, "Tick 2 to 8 runs in the list")));
