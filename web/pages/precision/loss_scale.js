// The Loss scale page: the line of the scale, every drop with its cause, and the layers that overflow.

import * as api from "../../api/client.js";
import { onward, runPath, shownRange } from "../../api/url_state.js";
import { createLaneGroup } from "../../charts/lanes/lane_group.js";
import { LANES } from "../../charts/lanes/lane_specs.js";
import { createScaleLanes, scalerName } from "../../charts/lanes/series_lanes.js";
import { el, link, replace } from "../../format/dom.js";
import { bits, clip, count, magnitude, plural, rankList, reading, scale } from "../../format/numbers.js";
import { reuseRows } from "../../format/reuse_rows.js";
import { pasteBlock } from "../../widgets/controls/copy_button.js";
import { createDetailCards, createNothing } from "../../widgets/detail_cards.js";
import { createRangeBar } from "../../widgets/controls/range_bar.js";
import { runPage } from "../../widgets/run_page.js";
import { createSortedTable } from "../../widgets/tables/sorted_table.js";
import { createVerdict } from "../../widgets/verdict.js";

const HEIGHT = 150;
/** How the URL's key names the page of drops that is shown: those before a step. */
const BEFORE = "before:";
const HINTS = [
  "A scaler multiplies the loss, so that small gradients do not vanish in float16, and lowers the scale when a gradient overflows: it skips that step.",
  "Red ticks on the axis are skipped steps. Drag over the lane to see fewer steps, double click to see all.",
  "A drop's step opens its frames on the rank that was first.",
];

/** @param {import("../../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx, refetch) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const cards = createDetailCards();
  const nothing = createNothing("No loss scale is known");
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const further = createScaleLanes();
  const group = createLaneGroup(ctx, [{ spec: { ...LANES.loss_scale, plotHeight: () => HEIGHT } }, ...further.map(({ entry }) => entry)], refetch);
  further.forEach((lane, i) => lane.attach(group.lanes[i + 1]));
  const drops = createDropsTable(ctx);
  const clean = el("section", { class: "panel state-panel", "data-testid": "no-drop", hidden: true }, el("h2", {}, "The scale has not dropped in these steps"));
  const cleanText = el("p");
  clean.append(cleanText);
  const layers = createOverflowTable(ctx);
  const made = el("p", { class: "muted figure-notes" });
  const some = el("div", { class: "loss-scale" }, cards.element, range.element, group.element, clean, drops.element, layers.element, made);
  const element = el("div", {}, verdict.element, nothing.element);

  /** @param {LossScale} answer of all shown steps @param {LossScale} page of the drops that are listed @param {boolean} isNewest whether they reach the last step of the run */
  function show(answer, page, isNewest) {
    const isEmpty = !answer.scalers.length;
    nothing.update(isEmpty ? whyNothing() : null);
    verdict.element.hidden = isEmpty;
    if (isEmpty) return;
    if (!some.isConnected) element.append(some); // figures are there only where they are drawn
    verdict.update(scaleVerdict(answer, run, { state: ctx.state, isNewest }));
    cards.update(scaleCards(answer));
    clean.hidden = answer.drops.length > 0;
    cleanText.textContent = noDropText(answer, isNewest);
    const at = (/** @type {string} */ key) => runPath(run, "loss-scale", { ...ctx.state, key });
    drops.update(page.drops, { older: page.next === null ? null : at(`${BEFORE}${page.next}`), newest: beforeOf(ctx.state.key) === null ? null : at("") });
    layers.update(answer.layers);
    made.textContent = madeOf(answer);
  }

  return {
    element,
    async update(about, signal) {
      range.update(about);
      const steps = shownRange(ctx.state, about);
      const before = beforeOf(ctx.state.key);
      const [answer, page] = await Promise.all([
        api.lossScale(run, { ...steps, limit: PAGE_DROPS }, signal),
        before === null ? null : api.lossScale(run, { ...steps, stop: Math.max(steps.start, Math.min(before, steps.stop)), limit: PAGE_DROPS }, signal),
      ]);
      show(answer, page ?? answer, answer.stop > (about.last_step ?? -1));
      if (answer.scalers.length) await group.update({ run: about, state: ctx.state, range: steps }, signal);
    },
    destroy: group.destroy,
  };
}

/** The step that the listed drops come before; null: the newest. @param {string} key */
function beforeOf(key) {
  const step = key.startsWith(BEFORE) ? key.slice(BEFORE.length) : "";
  return /^\d{1,15}$/.test(step) ? Number(step) : null;
}

/** How many drops the table of layers is made of. @param {LossScale} answer */
function madeOf({ layers, layers_of_drops: explained }) {
  return layers.length ? `Made of ${explained === 1 ? "1 drop" : `${count(explained)} drops`}: the newest and the oldest of these steps, at most 50 of each.` : "";
}

const SCALER = "rangewatch.attach(model, optimizer, scaler=scaler)";

/** @returns {(string | Node)[]} */
function whyNothing() {
  return [
    "No scaler has reported its scale in this run. Training in bfloat16 or float32 needs none. With torch.amp.GradScaler, or the one of a framework, give it to attach:",
    pasteBlock(SCALER, "The line that attaches with a scaler"),
    "DeepSpeed, Lightning, Accelerate and the Trainer have theirs detected by their integrations.",
  ];
}

export default runPage({
  id: "loss-scale",
  title: "Loss scale",
  key: "s",
  help: "Each drop of the loss scale with its cause",
  build,
});

// The drops of the loss scale as a table, and what their causes mean. A row that is read stays where it is while the run goes on.

const COLUMNS = ["Step", "Scale", "Cause", "Ranks", "First to overflow", "Headroom before"];

/** @param {import("../../types.js").PageContext} ctx */
function createDropsTable(ctx) {
  const body = el("tbody");
  const caption = el("caption");
  const table = el("table", { class: "dense drops-table", "data-testid": "drops-table" }, caption, el("thead", {}, el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)))), body);
  const causes = el("dl", { class: "cause-list" });
  const pager = el("nav", { class: "pager", "aria-label": "Pages of drops" });
  const element = el("section", { class: "panel drops" }, el("div", { class: "table-scroll" }, table), pager, causes);
  let explained = "";

  /** @param {readonly Drop[]} drops */
  function explain(drops) {
    const shownCauses = [...new Set(drops.map(({ cause }) => cause))];
    if (explained === String(shownCauses)) return;
    explained = String(shownCauses);
    replace(causes, ...shownCauses.flatMap(causeLines));
  }

  return {
    element,
    /** @param {readonly Drop[]} drops @param {{older: string | null, newest: string | null}} pages addresses */
    update(drops, { older, newest }) {
      element.hidden = !drops.length && !newest;
      caption.textContent = newest ? "Earlier drops, newest first" : "Drops, newest first";
      reuseRows(body, drops.map((drop) => rowOf(drop, ctx)));
      reuseRows(pager, [newest && pageLink(newest, "Newest drops"), older && pageLink(older, "Earlier drops")].filter((one) => one instanceof Element));
      explain(drops);
    },
  };
}

/** @param {string} path @param {string} text */
const pageLink = (path, text) => link(path, { "data-key": text }, text);

/** @param {Drop} drop @param {import("../../types.js").PageContext} ctx */
function rowOf(drop, { params, state }) {
  const { step, first, cause } = drop;
  const tensor = first ? link(runPath(params.id, "tensor", onward(state, { tensor: first.tensor, rank: first.rank })), { class: "name", title: first.label }, clip(first.label, 100)) : el("span", { class: "muted" }, "not known");
  const cells = [
    link(stepPath(drop, params.id, state), {}, count(step)),
    scalesText(drop),
    el("span", { class: cause === "forward" || cause === "reduction" ? "bad" : "" }, causeText(cause).what),
    ranksText(drop),
    tensor,
    headroomText(first),
  ];
  return el("tr", { "data-key": step, "data-cause": clip(cause, 20) }, ...cells.map((cell, i) => el("td", { "data-label": COLUMNS[i] }, cell)));
}

/** @param {string} cause */
function causeLines(cause) {
  const { what, means, todo } = causeText(cause);
  return [el("dt", {}, what.slice(0, 1).toUpperCase() + what.slice(1)), el("dd", {}, means, " ", el("strong", {}, "What to do: "), todo)];
}

// The layers by how often they overflowed when the loss scale dropped, each with its largest finite magnitude.

/** @typedef {Layer & {view: ReturnType<typeof onward>}} Row `view`: what its links take along, so that they follow the shown steps */

/** Which limit of its type a magnitude is near. @param {Layer} layer */
function ofLimit({ amax, max_finite: limit }) {
  return amax === null || !limit ? "not known" : `${Number(((100 * amax) / limit).toPrecision(2))} %`;
}

/** @param {import("../../types.js").PageContext} ctx */
function createOverflowTable(ctx) {
  const { id } = ctx.params;
  const table = createSortedTable(
    ctx,
    [
      { name: "Tensor", by: (/** @type {Row} */ layer) => layer.label, show: (layer) => link(runPath(id, "tensor", { ...layer.view, tensor: layer.tensor }), { class: "name breaks", title: layer.label }, clip(layer.label)) },
      { name: "Overflowed", by: (layer) => layer.overflows, show: (layer) => count(layer.overflows), isNumber: true, help: "Drops at which it held NaN or Inf" },
      { name: "Was first", by: (layer) => layer.first, show: (layer) => count(layer.first), isNumber: true, help: "Drops at which no other tensor had NaN or Inf before it" },
      { name: "Largest finite", by: (layer) => layer.amax, show: (layer) => magnitude(layer.amax), isNumber: true, help: "Largest finite magnitude in these steps, as the hardware held it: multiplied by the loss scale" },
      { name: "Of its type's limit", by: (layer) => (layer.amax === null || !layer.max_finite ? null : layer.amax / layer.max_finite), show: ofLimit, isNumber: true, help: "Of the dtype's largest finite number" },
      { name: "Type", by: (layer) => layer.dtype, show: (layer) => el("span", {}, clip(layer.dtype, 30)) },
      { name: "Last time", by: (layer) => layer.last_step, show: (layer) => link(runPath(id, "step", { ...layer.view, step: layer.last_step, tensor: layer.tensor }), {}, `step ${count(layer.last_step)}`), isNumber: true },
    ],
    { caption: "Layers by overflows", name: "overflow-table", sortBy: "Overflowed" },
  );
  const more = el("button", { type: "button", class: "quiet", click: () => show(true) });
  const element = el("div", {}, table.element, more);
  let isWhole = false;
  /** @type {readonly Layer[]} */
  let all = [];

  /** @param {boolean} whole with those that only followed another */
  function show(whole) {
    isWhole = whole;
    const first = firstOnes(all);
    const shown = whole ? all : first;
    table.update(shown.map((layer) => ({ ...layer, view: onward(ctx.state) })));
    const left = all.length - first.length;
    more.hidden = whole || left === 0;
    more.textContent = `Show ${plural(left, "more layer")}, never first to overflow`;
  }

  return {
    element,
    /** @param {readonly Layer[]} layers */
    update(layers) {
      all = layers;
      show(isWhole);
    },
  };
}

/** Those that no other overflowed before: the rest was computed from them. All, where none was. @param {readonly Layer[]} layers */
function firstOnes(layers) {
  const first = layers.filter((layer) => layer.first > 0);
  return first.length ? first : layers;
}

// Texts of the loss scale: what it did and why.

/** @typedef {import("../../types.js").LossScale} LossScale */
/** @typedef {import("../../types.js").ScaleDrop} Drop */
/** @typedef {import("../../types.js").OverflowLayer} Layer */
/** @typedef {{what: string, means: string, todo: string}} CauseText */

/** Of the newest drops, as many are on a page; the sentence speaks of all. */
const PAGE_DROPS = 25;
/** A larger share of skipped steps than this is no normal search for the scale. */
const USUAL_SHARE = 0.05;
const MOST_LETTERS = 120;

/** By the server's name of the cause. @type {Readonly<Record<string, CauseText>>} */
export const CAUSES = Object.freeze({
  gradient: {
    what: "a gradient overflowed",
    means: "The scaled gradient was too large for its type. The step was skipped and the scale lowered, which is how loss scaling finds its limit.",
    todo: "Nothing while it is rare. Where it comes again and again at one layer: keep that layer in float32 or bfloat16, or make growth_interval larger.",
  },
  forward: {
    what: "NaN or Inf before the backward pass",
    means: "An output, input or weight was not finite before any gradient was computed. The loss scale is not to blame, and lowering it does not help.",
    todo: "Open the first tensor at that step, and keep its layer in float32 or bfloat16, or bound what goes into it.",
  },
  reduction: {
    what: "an overflow where ranks are added up",
    means: "Every rank's own gradients were finite. Their sum, or the optimizer's update, was not.",
    todo: "Divide before the sum is taken, or reduce in float32 or bfloat16.",
  },
  unknown: {
    what: "nothing recorded was to blame",
    means: "The scaler saw NaN or Inf in a tensor that Rangewatch does not observe, or that was not recorded at that step.",
    todo: "Ask for a trace of the next steps in full, for all modules.",
  },
  set: {
    what: "set lower without a skipped step",
    means: "The program gave the scaler a new scale, a restart brought back an older one, or the scaler follows rules of its own.",
    todo: "Nothing, if that was meant.",
  },
});

/** @param {string} cause @returns {CauseText} */
export const causeText = (cause) => (Object.hasOwn(CAUSES, cause) ? CAUSES[cause] : { what: cause, means: "", todo: "" });

/** 2¹⁶ → 2¹⁵, of each scaler that changed; else of the first, which stayed. @param {Pick<Drop, "scales">} drop */
export function scalesText({ scales }) {
  const changed = scales.filter(({ before, after }) => before !== after);
  const shown = changed.length ? changed : scales.slice(0, 1);
  const known = (/** @type {number | null} */ value) => (value === null ? "not known" : scale(value));
  return shown.map(({ scaler, before, after }) => `${scales.length > 1 ? `${scalerName(scaler)}: ` : ""}${known(before)} → ${known(after)}`).join(", ");
}

/** @param {Pick<Drop, "ranks" | "rank_count">} drop */
export function ranksText({ ranks, rank_count: all }) {
  if (!ranks.length) return "none seen";
  return all > ranks.length ? `${rankList(ranks)} and ${count(all - ranks.length)} more` : rankList(ranks);
}

/** How far the first tensor was from its limit in the steps before. @param {import("../../types.js").FirstBad | null} first */
export function headroomText(first) {
  if (!first || first.headroom_before_bits === null) return "not known";
  return `${bits(first.headroom_before_bits)} of ${clip(first.limit_dtype, 20)}`;
}

/** How a scaler grows and falls, as far as it is known. @param {import("../../types.js").ScalerSettings | null | undefined} settings */
export function settingsText(settings) {
  if (!settings) return "";
  const { growth_factor: up, growth_interval: every, backoff_factor: down } = settings;
  const grows = up !== null && every !== null ? `× ${reading(up)} after ${plural(every, "clean step")}` : up !== null ? `grows × ${reading(up)}` : "";
  const falls = down === null ? "" : `× ${reading(down)} at a skip`;
  return [grows, falls].filter(Boolean).join(", ");
}

/**
 * @param {LossScale} answer @param {string} run
 * @param {{state?: Parameters<typeof onward>[0], isNewest?: boolean}} [shown] isNewest: its steps reach the last one of the run
 * @returns {import("../../types.js").Verdict}
 */
export function scaleVerdict(answer, run, { state = {}, isNewest = true } = {}) {
  const { drops, layers, layers_of_drops: explained } = answer;
  const [worst] = layers;
  /** @type {[string, string][]} */
  const parts = [["text", `${skipsText(answer)}; ${fallText(answer, isNewest)}`]];
  if (worst && worst.first > 0) parts.push(["text", "; "], ["code", clip(worst.label, MOST_LETTERS)], ["text", ` overflowed first in ${count(worst.first)} of ${count(explained)}`]);
  parts.push(["text", "."]);
  return { level: levelOf(answer), parts, links: [...dropLink(drops[0], run, state), ...layerLink(worst, run, state)] };
}

/** @param {LossScale} answer */
function skipsText({ skipped_steps: skips, start, stop }) {
  return `${skips ? count(skips) : "No"} skipped ${skips === 1 ? "step" : "steps"} in ${count(stop - start)}`;
}

/** @param {LossScale} answer @param {boolean} isNewest */
function fallText({ scalers, drops }, isNewest) {
  const [{ min, max, last }] = scalers;
  if (min === null) return "no scale was reported in these steps";
  if (min === max) return `the scale was ${scale(max)} throughout`;
  const end = last === null ? "" : isNewest ? `, now ${scale(last)}` : `, ${scale(last)} at the end of these steps`;
  return drops.length ? `the scale was between ${scale(min)} and ${scale(max)}${end}` : `the scale grew from ${scale(min)} to ${scale(max)}`;
}

/** @param {LossScale} answer */
function levelOf({ drops, skipped_steps: skips, start, stop }) {
  const isSerious = drops.some(({ cause }) => cause === "forward" || cause === "reduction");
  return isSerious || skips > (stop - start) * USUAL_SHARE ? "warning" : "ok";
}

/** The text where the scale never fell. @param {LossScale} answer @param {boolean} isNewest */
export function noDropText({ start, stop, scalers }, isNewest) {
  const [{ last }] = scalers;
  const end = last === null ? "" : isNewest ? ` It is ${scale(last)} now.` : ` It was ${scale(last)} at the end of these steps.`;
  return `No step was skipped and the scale was never lowered in ${plural(stop - start, "step")}.${end}`;
}

/** @param {Drop | undefined} drop @param {string} run @param {Parameters<typeof onward>[0]} state */
function dropLink(drop, run, state) {
  return drop ? [{ label: "Newest drop", path: stepPath(drop, run, state) }] : [];
}

/** @param {Layer | undefined} layer @param {string} run @param {Parameters<typeof onward>[0]} state */
function layerLink(layer, run, state) {
  return layer ? [{ label: "That layer over the steps", path: runPath(run, "tensor", onward(state, { tensor: layer.tensor })) }] : [];
}

/** The Step page of a drop, on the rank that was first. @param {Drop} drop @param {string} run @param {Parameters<typeof onward>[0]} [state] */
export const stepPath = ({ step, first, ranks }, run, state = {}) => runPath(run, "step", onward(state, { step, rank: first?.rank ?? ranks[0] ?? null, tensor: first?.tensor ?? null }));

/** @param {LossScale} answer @returns {import("../../widgets/detail_cards.js").Card[]} */
export function scaleCards({ scalers, skipped_steps: skips, start, stop }) {
  const many = scalers.length > 1;
  const cards = scalers.map(({ name, min, max, last, settings }) => ({
    title: many ? `Loss scale, ${scalerName(name)}` : "Loss scale",
    value: last === null ? "not known" : scale(last),
    under: [min === null ? "" : min === max ? "throughout these steps" : `${scale(min)} to ${scale(max)} in these steps`, settingsText(settings)].filter(Boolean).join("; "),
  }));
  const share = stop > start ? ` (${reading((100 * skips) / (stop - start))} %)` : "";
  return [...cards, { title: "Skipped steps", value: count(skips), under: `of ${count(stop - start)}${share}` }];
}
