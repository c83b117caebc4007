// What the loss scale did and why, in words. Pure.

import { bits, clip, count, plural, rankList, reading, scale } from "./format.js";
import { onward, runPath } from "./url_state.js";

/** @typedef {{class: string | null, growth_factor: number | null, backoff_factor: number | null, growth_interval: number | null}} ScalerSettings */
/** @typedef {{name: string, min: number | null, max: number | null, last: number | null, settings?: ScalerSettings | null}} Scaler */
/** @typedef {{tensor: number, label: string, rank: number, limit_dtype: string, amax_before: number | null, headroom_before_bits: number | null}} FirstBad */
/** @typedef {{scaler: string, before: number | null, after: number | null}} ScaleChange */
/**
 * @typedef {object} Drop a step that was skipped, or after which the scale was lower
 * @property {number} step
 * @property {boolean} skipped
 * @property {string} cause
 * @property {ScaleChange[]} scales
 * @property {number[]} ranks
 * @property {number} rank_count
 * @property {FirstBad | null} first
 * @property {number} tensor_count
 */
/** @typedef {{tensor: number, label: string, first: number, overflows: number, last_step: number, amax: number | null, max_finite: number | null, dtype: string}} OverflowLayer */
/** @typedef {{start: number, stop: number, scalers: Scaler[], skipped_steps: number, drops: Drop[], next: number | null, layers: OverflowLayer[], layers_of_drops: number}} LossScale */
/** @typedef {{what: string, means: string, todo: string}} CauseWords */

/** Of the newest drops, as many are on a page; the sentence speaks of all. */
export const PAGE_DROPS = 25;
/** A larger share of skipped steps than this is no normal search for the scale. */
const USUAL_SHARE = 0.05;
const MOST_LETTERS = 120;

/** By the server's name of the cause. @type {Readonly<Record<string, CauseWords>>} */
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

/** @param {string} cause @returns {CauseWords} */
export const causeWords = (cause) => (Object.hasOwn(CAUSES, cause) ? CAUSES[cause] : { what: cause, means: "", todo: "" });

/** 2¹⁶ → 2¹⁵, of each scaler that changed; else of the first, which stayed. @param {Pick<Drop, "scales">} drop */
export function scalesText({ scales }) {
  const changed = scales.filter(({ before, after }) => before !== after);
  const shown = changed.length ? changed : scales.slice(0, 1);
  const known = (/** @type {number | null} */ value) => (value === null ? "not known" : scale(value));
  return shown.map(({ scaler, before, after }) => `${scales.length > 1 ? `${scalerName(scaler)}: ` : ""}${known(before)} → ${known(after)}`).join(", ");
}

/** "scaler 2" of "loss_scale/1". @param {string} series */
export function scalerName(series) {
  const number = /^loss_scale(?:\/(\d+))?$/.exec(series);
  return number ? `scaler ${Number(number[1] ?? 0) + 1}` : clip(series, MOST_LETTERS);
}

/** @param {Pick<Drop, "ranks" | "rank_count">} drop */
export function ranksText({ ranks, rank_count: all }) {
  if (!ranks.length) return "none seen";
  return all > ranks.length ? `${rankList(ranks)} and ${count(all - ranks.length)} more` : rankList(ranks);
}

/** How far the first tensor was from its limit in the steps before. @param {FirstBad | null} first */
export function headroomText(first) {
  if (!first || first.headroom_before_bits === null) return "not known";
  return `${bits(first.headroom_before_bits)} of ${clip(first.limit_dtype, 20)}`;
}

/** How a scaler grows and falls, as far as it told. @param {ScalerSettings | null | undefined} told */
export function settingsText(told) {
  if (!told) return "";
  const { growth_factor: up, growth_interval: every, backoff_factor: down } = told;
  const grows = up !== null && every !== null ? `× ${reading(up)} after ${plural(every, "clean step")}` : up !== null ? `grows × ${reading(up)}` : "";
  const falls = down === null ? "" : `× ${reading(down)} at a skip`;
  return [grows, falls].filter(Boolean).join(", ");
}

/**
 * @param {LossScale} answer @param {string} run
 * @param {{state?: Parameters<typeof onward>[0], isNewest?: boolean}} [shown] isNewest: its steps reach the last one of the run
 * @returns {import("./types.js").Verdict}
 */
export function scaleVerdict(answer, run, { state = {}, isNewest = true } = {}) {
  const { drops, layers, layers_of_drops: looked } = answer;
  const [worst] = layers;
  /** @type {[string, string][]} */
  const parts = [["text", `${skipsText(answer)}; ${fallText(answer, isNewest)}`]];
  if (worst && worst.first > 0) parts.push(["text", "; "], ["code", clip(worst.label, MOST_LETTERS)], ["text", ` overflowed first in ${count(worst.first)} of ${count(looked)}`]);
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
  if (min === null) return "no scale was told in these steps";
  if (min === max) return `the scale was ${scale(max)} throughout`;
  const end = last === null ? "" : isNewest ? `, now ${scale(last)}` : `, ${scale(last)} at the end of these steps`;
  return drops.length ? `the scale was between ${scale(min)} and ${scale(max)}${end}` : `the scale grew from ${scale(min)} to ${scale(max)}`;
}

/** @param {LossScale} answer */
function levelOf({ drops, skipped_steps: skips, start, stop }) {
  const isSerious = drops.some(({ cause }) => cause === "forward" || cause === "reduction");
  return isSerious || skips > (stop - start) * USUAL_SHARE ? "warning" : "ok";
}

/** What is said where the scale never fell. @param {LossScale} answer @param {boolean} isNewest */
export function cleanWords({ start, stop, scalers }, isNewest) {
  const [{ last }] = scalers;
  const end = last === null ? "" : isNewest ? ` It is ${scale(last)} now.` : ` It was ${scale(last)} at the end of these steps.`;
  return `No step was skipped and the scale was never lowered in ${plural(stop - start, "step")}.${end}`;
}

/** @param {Drop | undefined} drop @param {string} run @param {Parameters<typeof onward>[0]} state */
function dropLink(drop, run, state) {
  return drop ? [{ label: "Newest drop", path: stepPath(drop, run, state) }] : [];
}

/** @param {OverflowLayer | undefined} layer @param {string} run @param {Parameters<typeof onward>[0]} state */
function layerLink(layer, run, state) {
  return layer ? [{ label: "That layer over the steps", path: runPath(run, "tensor", onward(state, { tensor: layer.tensor })) }] : [];
}

/** The Step page of a drop, on the rank that was first. @param {Drop} drop @param {string} run @param {Parameters<typeof onward>[0]} [state] */
export const stepPath = ({ step, first, ranks }, run, state = {}) => runPath(run, "step", onward(state, { step, rank: first?.rank ?? ranks[0] ?? null, tensor: first?.tensor ?? null }));

/** @param {LossScale} answer @returns {import("./components/cards.js").Card[]} */
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
