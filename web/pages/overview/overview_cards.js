// The row of small cards: what the run is at now, and how it came there. What was not recorded has no card.

import { onward, runPath } from "../../api/url_state.js";
import { points } from "../../charts/lines.js";
import { el, link, svg } from "../../format/dom.js";
import { count, duration, plural, rankName, reading, scale, seconds } from "../../format/numbers.js";
import { percent } from "../../format/units.js";
import { reuseRows } from "../../format/reuse_rows.js";
import { drawCard, headroomText, isFar } from "../../widgets/detail_cards.js";

/** @typedef {import("../../types.js").Run} Run */
/** @typedef {import("../../types.js").ViewState} ViewState */
/** @typedef {import("../../widgets/detail_cards.js").Card} Card */
/** @typedef {{run: Run, state: ViewState, models: ReadonlyMap<string, any>, logged: ReadonlyMap<string, any>}} Known what is known: of the lanes by name, and of what the program logs by series */

/** @param {import("../../types.js").PageContext} ctx */
export function createOverviewCards(ctx) {
  const element = el("div", { class: "cards overview-cards" });
  /** What the lanes show, as it came. @type {Map<string, any>} */
  const models = new Map();
  /** @type {Map<string, any>} */
  const logged = new Map();
  /** @type {Run | null} */
  let run = null;

  function draw() {
    if (!run) return;
    const known = { run, state: ctx.state, models, logged };
    reuseRows(element, CARDS.flatMap((card) => card(known) ?? []).map(drawCard));
  }

  return {
    element,
    /** @param {Run} next */
    update(next) {
      run = next;
      draw();
    },
    /** A lane has new data: the cards ask for nothing themselves. @param {string} name @param {any} model */
    takeLane(name, model) {
      models.set(name, model);
      draw();
    },
    /** @param {string} series @param {any} model */
    takeSeries(series, model) {
      logged.set(series, model);
      draw();
    },
  };
}

/** @param {ViewState} state */
const isPart = ({ start, stop, last }) => start !== null || stop !== null || last !== null;

/** @param {any} model of lines @param {number} [at] which of them */
const pointsOf = (model, at = 0) => points(model?.series?.[at]);

/** @param {Known} known @returns {Card | null} */
function loss({ run, state, models }) {
  if (!run.series.includes("loss")) return null;
  const shown = pointsOf(models.get("loss"));
  const [first, last] = [shown[0], shown.at(-1)];
  if (!first || !last) return { title: "Loss", value: models.has("loss") ? "not finite" : "…", level: models.has("loss") ? "critical" : undefined };
  const change = last.y - first.y;
  const since = isPart(state) ? "in view" : "overall"; // a card holds about 18 letters
  const under = shown.length < 2 ? `step ${count(last.x)}` : change === 0 ? "unchanged" : `${change > 0 ? "+" : "−"}${reading(Math.abs(change))} ${since}`;
  const bad = models.get("loss").markSteps?.length ? "critical" : undefined;
  return { title: "Loss", value: reading(last.y), under, level: bad, chart: sparkline(shown) };
}

/** Beside the median of what is shown. @param {Known} known @returns {Card | null} */
function stepTime({ run, models }) {
  if (run.step_time_s === null) return null;
  const shown = pointsOf(models.get("step_time"));
  const middle = shown.map(({ y }) => y).sort((a, b) => a - b)[shown.length >> 1];
  const under = middle === undefined ? " " : `median ${seconds(middle / 1000)}`;
  return { title: "Step time", value: seconds(run.step_time_s), under, level: isSlow(run, middle) ? "warning" : undefined, chart: sparkline(shown) };
}

/** Of the median: a step that takes so much longer than usual is slow. */
const SLOW = 1.5;

/** @param {Run} run @param {number | undefined} middle ms */
const isSlow = ({ state, step_time_s: now }, middle) => ["live", "hung"].includes(state) && now !== null && middle !== undefined && now * 1000 > SLOW * middle;

/** Series that count tokens a second. */
const TOKENS = /^(?:.*\/)?(?:tokens?_per_s(?:ec(?:ond)?)?|tok(?:ens)?\/s(?:ec)?|tps)$/i;

/** @param {Known} known @returns {Card | null} */
function speed({ run, logged }) {
  if (!run.step_time_s) return null;
  const [, model] = [...logged].find(([name]) => TOKENS.test(name)) ?? [];
  const tokens = pointsOf(model);
  const rate = tokens.at(-1)?.y;
  const value = reading(Number((1 / run.step_time_s).toPrecision(run.step_time_s > 1 ? 2 : 3)));
  const of = rate === undefined ? "steps/s" : `steps/s, ${count(Math.round(rate))} tokens/s`;
  return { title: "Speed", value, under: el("span", { title: `${value} ${of}` }, of), chart: sparkline(tokens) };
}

/** Series, and names of options, that hold the number of steps that the run is to take. */
const TOTALS = /^(?:.*\/)?(?:max_steps|total_steps|num_training_steps|train_steps|max_iters)$/i;

/** How long it has run; and, of a run that goes on and has said how many steps it will take, how long it has to go. @param {Known} known @returns {Card | null} */
function elapsed({ run, logged }) {
  const ran = run.last_seen_ns - run.started_ns;
  if (run.last_step === null || ran <= 0) return null;
  const [, model] = [...logged].find(([name]) => TOTALS.test(name)) ?? [];
  const total = pointsOf(model).at(-1)?.y;
  const left = total === undefined || run.step_time_s === null ? null : (total - run.last_step - 1) * run.step_time_s;
  const isGoing = run.state === "live" && left !== null && left > 0;
  return { title: "Elapsed", value: duration(ran), under: isGoing ? el("span", { title: `to step ${count(Number(total))}` }, `about ${duration(left * 1e9)} left`) : plural(run.last_step - (run.first_step ?? 0) + 1, "step") };
}

/** Seconds of a run below which its start is most of it. */
const LEAST_WALL_S = 60;

/** The share of the time in steps that counted, and where the rest went; null where there is no card. @param {Run["goodput"]} known */
export function goodputText(known) {
  if (!known || known.wall_s < LEAST_WALL_S) return null;
  const { share, skipped_steps: skipped, replayed_steps: replayed, starts, wall_s: wall, counted_s: counted, skipped_s: lost, other_s: other } = known;
  const text = (/** @type {number} */ s) => duration(s * 1e9);
  const parts = [starts > 1 ? plural(starts - 1, "restart") : "", replayed ? `${count(replayed)} replayed` : "", skipped ? `${count(skipped)} skipped` : ""].filter(Boolean);
  const how = `Steps that counted took ${text(counted)} of the ${text(wall)} from attach to the end of the last step; skipped ones ${text(lost)}; start-up, restarts and replayed steps ${text(other)}. Rank ${known.rank}.`;
  return { value: percent(share), under: parts.join(", ") || `of ${text(wall)}`, how };
}

/** @param {Known} known @returns {Card | null} */
function goodput({ run }) {
  const text = goodputText(run.goodput);
  return text && { title: "Goodput", value: text.value, under: el("span", { title: text.how }, text.under) };
}

/** Where somebody has said, or had counted, how many operations a step takes. @param {Run["mfu"]} known */
export function mfuText(known) {
  if (!known) return null;
  const { share, peak_flops: peak, flops_per_step: work, step_time_s: time, device, source } = known;
  if (share === null || work === null || peak === null) {
    const missing = work === null ? "operations of a step" : peak === null ? `peak of ${device}` : "step time";
    return { value: "unknown", under: `${missing} unknown`, how: "" };
  }
  const most = `${reading(peak / 1e12)} TFLOP/s`;
  return { value: percent(share), under: `of ${most}`, how: `${reading(work / 1e12)} TFLOP a step (${source}) in ${seconds(time)}, of ${most} of ${device}. Rank ${known.rank}.` };
}

/** @param {Known} known @returns {Card | null} */
function mfu({ run }) {
  const text = mfuText(run.mfu);
  return text && { title: "MFU", value: text.value, under: el("span", { title: text.how }, text.under) };
}

/** Below so many bits of headroom a value is near its limit. */
const WARNING_BITS = 2;

/** @param {Known} known @returns {Card | null} */
function headroom({ run, state }) {
  const least = run.least_headroom;
  if (!least) return null;
  if (isFar(least)) return { title: "Headroom", value: headroomText(least), under: "far from all limits" };
  const { step, rank, tensor, bits: left } = least;
  const under = link(runPath(run.id, "step", onward(state, { step, rank, tensor })), {}, `step ${count(step)}, ${rankName(rank)}`);
  const found = run.verdict.findings?.find(({ rule }) => rule === "first_nonfinite");
  const level = left === null ? (found?.severity ?? "critical") : left < WARNING_BITS ? "warning" : undefined;
  const values = run.sparkline.flatMap((value, i) => (value === null ? [] : [{ x: i, y: Math.max(0, value) }]));
  return { title: "Least headroom", value: headroomText(least), under, level, chart: sparkline(values) };
}

/** Of a run with a loss scaler: without one no step is skipped, and none is counted. @param {Known} known @returns {Card | null} */
function skipped({ run, state }) {
  if (run.loss_scale === null || run.skipped_steps === null) return null;
  const steps = run.first_step === null || run.last_step === null ? "" : `of ${count(run.last_step - run.first_step + 1)}, `;
  const under = el("span", {}, steps, link(runPath(run.id, "loss-scale", onward(state)), {}, `scale ${scale(run.loss_scale)}`));
  return { title: "Skipped steps", value: count(run.skipped_steps), under };
}

/** Only where collectives were timed is it known that there is none. It warns where the verdict does: of the straggler, or of the same rank's GPU; from where that began on. @param {Known} known @returns {Card | null} */
function straggler({ run, state, models }) {
  const findings = run.verdict.findings ?? [];
  const found = findings.find(({ rule }) => rule === "straggler");
  const waits = models.get("waits");
  if (!found && !waits?.isKnown) return null;
  const late = waits ? lateRow(waits, run.step_time_s, (found ?? findings[0])?.step ?? 0) : null;
  const open = found ?? (late ? findings.find(({ rank }) => rank !== null && rank === late.rank) : undefined);
  const rank = typeof open?.rank === "number" ? rankName(open.rank) : null;
  const cost = late && (open ? `others wait ${seconds(late.wait_s)}` : `most for ${late.label}`);
  const text = cost ?? (typeof open?.step === "number" ? `since step ${count(open.step)}` : "collectives");
  const under = link(runPath(run.id, "collectives", onward(state)), {}, text);
  return { title: "Straggler", value: rank ?? (open ? "not one rank" : "none"), under, level: open?.severity };
}

/** As the rule has it: the same one costs most in so many of the steps, so much of a step. */
const MOST_STEPS_SHARE = 0.6;
const LEAST_COST_SHARE = 0.05;

/**
 * The row that the others waited for, and how long each of them did in the middle of the steps; null of none.
 * @param {{rows: {label: string, count: number, rank?: number | null}[], columns: number, delay: ArrayLike<number>, x0?: number, dx?: number}} waits @param {number | null} stepTime seconds @param {number} [from] step
 */
export function lateRow({ rows, columns, delay, x0 = 0, dx = 1 }, stepTime, from = 0) {
  if (!stepTime || rows.length < 2) return null;
  /** @type {Map<number, {wait: number, more: number}[]>} by row what it cost each of the others where it cost most, and how much more that is than what the next row cost them: ranks that wait for each other in turn are none of them late */
  const worst = new Map();
  let known = 0;
  for (let column = Math.max(0, Math.min(columns - 1, Math.ceil((from - x0) / dx))); column < columns; column += 1) {
    const costs = rows.map((_, row) => ({ row, cost: delay[row * columns + column] })).filter((one) => one.cost >= 0);
    if (!costs.length) continue;
    known += 1;
    const [late, next] = costs.sort((a, b) => b.cost - a.cost);
    worst.set(late.row, [...(worst.get(late.row) ?? []), { wait: late.cost, more: late.cost - (next?.cost ?? 0) }]);
  }
  const [row, waited] = [...worst].sort((a, b) => b[1].length - a[1].length)[0] ?? [];
  if (row === undefined || waited === undefined || waited.length < MOST_STEPS_SHARE * known) return null;
  const middle = (/** @type {number[]} */ values) => values.sort((a, b) => a - b)[values.length >> 1];
  return middle(waited.map(({ more }) => more)) < LEAST_COST_SHARE * stepTime ? null : { label: rows[row].label, rank: rows[row].rank ?? null, wait_s: middle(waited.map(({ wait }) => wait)) };
}

/** @param {Known} known @returns {Card | null} */
function gpus({ run, models }) {
  const cards = models.get("gpu-cards");
  if (!cards?.total) return null;
  const under = link(runPath(run.id, "gpus"), {}, `of ${plural(cards.total, "GPU")}`);
  return { title: "GPUs in trouble", value: cards.troubled ? count(cards.troubled) : "none", under, level: cards.troubled ? (cards.isCritical ? "critical" : "warning") : undefined };
}

/** In their order; those that come later stand at the end, and move none. @type {((known: Known) => Card | null)[]} */
const CARDS = [loss, stepTime, speed, elapsed, headroom, skipped, straggler, gpus, goodput, mfu];

// A line without axes: the course of one figure.

const WIDTH = 120;
const HEIGHT = 12;
/** Beyond so many points they are merged, the largest of each part. */
const MOST_POINTS = 120;

/** @param {readonly {x: number, y: number}[]} values in their order */
function sparkline(values) {
  if (values.length < 2) return null;
  const every = Math.ceil(values.length / MOST_POINTS);
  const merged = Array.from({ length: Math.ceil(values.length / every) }, (_, i) => values.slice(i * every, (i + 1) * every).reduce((a, b) => (b.y > a.y ? b : a)));
  const low = merged.reduce((a, { y }) => Math.min(a, y), Infinity);
  const high = merged.reduce((a, { y }) => Math.max(a, y), -Infinity);
  const [first, last] = [values[0].x, values[values.length - 1].x];
  const place = (/** @type {{x: number, y: number}} */ { x, y }) => `${((WIDTH * (x - first)) / (last - first)).toFixed(1)},${(high > low ? 1 + (HEIGHT - 2) * (1 - (y - low) / (high - low)) : HEIGHT / 2).toFixed(1)}`;
  return svg("svg", { class: "card-line", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, svg("polyline", { points: merged.map(place).join(" ") }));
}
