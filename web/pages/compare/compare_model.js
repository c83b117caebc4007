// The comparison of runs in the address, and series as lines over steps, time or tokens, smoothed or not. Pure.

import { MOST_COMPARED, numbersIn } from "../../api/run_query.js";
import { decode } from "../../format/typed_array.js";

/** @typedef {"" | "relative" | "time" | "tokens"} Axis "": steps */
/** @typedef {{runs: number[], unread: string[], axis: Axis, smooth: number, isLog: boolean, tolerance: number}} CompareQuery */

/** @type {Record<string, string>} */
export const AXES = { "": "steps", relative: "steps since each began", time: "time since each began", tokens: "tokens" };
/** Shares of the value before, as TensorBoard has it. @type {Record<string, string>} */
export const SMOOTHS = { "": "none", 0.6: "0.6", 0.9: "0.9", 0.97: "0.97", 0.99: "0.99" };
/** @type {Record<string, string>} */
export const TOLERANCES = { "1e-6": "0.0001 %", "0.00001": "0.001 %", "0.0001": "0.01 %", "": "0.1 %", 0.01: "1 %", 0.1: "10 %" };
const USUAL_TOLERANCE = 0.001;

/** @param {string} search @returns {CompareQuery} */
export function parseCompare(search) {
  const query = new URLSearchParams(search);
  const oneOf = (/** @type {string} */ name, /** @type {object} */ known) => (Object.hasOwn(known, query.get(name) ?? "") ? (query.get(name) ?? "") : "");
  const named = (query.get("runs") ?? "").split(",");
  return {
    runs: numbersIn(named.join(",")),
    unread: named.filter((one) => one && !numbersIn(one).length),
    axis: /** @type {Axis} */ (oneOf("x", AXES)),
    smooth: Number(oneOf("smooth", SMOOTHS)),
    isLog: query.get("log") === "1",
    tolerance: Number(oneOf("tolerance", TOLERANCES) || USUAL_TOLERANCE),
  };
}

/** The option of a select that a number is. @param {Record<string, string>} options @param {number} value */
export const optionOf = (options, value) => Object.keys(options).find((one) => one !== "" && Number(one) === value) ?? "";

/** @param {CompareQuery} query */
export function formatCompare({ runs, axis, smooth, isLog, tolerance }) {
  const out = [`runs=${runs.join(",")}`];
  if (axis) out.push(`x=${axis}`);
  if (smooth) out.push(`smooth=${optionOf(SMOOTHS, smooth)}`);
  if (isLog) out.push("log=1");
  if (tolerance !== USUAL_TOLERANCE) out.push(`tolerance=${optionOf(TOLERANCES, tolerance)}`);
  return `/compare?${out.join("&")}`;
}

/** Why these cannot be compared, in a sentence; null where they can. @param {readonly number[]} runs @param {readonly string[]} [unread] */
export function refusal(runs, unread = []) {
  if (unread.length) return `Runs are named by their numbers, as in runs=3,7: ${unread.map((one) => `"${one}"`).join(", ")} ${unread.length === 1 ? "is" : "are"} none.`;
  if (!runs.length) return "No run is ticked.";
  if (runs.length === 1) return "One run alone has nothing to be compared with.";
  return runs.length > MOST_COMPARED ? `${runs.length} runs are too many: ${MOST_COMPARED} at most are compared.` : null;
}

// Which series there are.

const NORMS = ["grad_norm", "train/grad_norm", "gradient_norm", "total_norm", "grad_norm/train"];
/** The usual ones, in the order of their charts. */
const FIRST = ["loss", ...NORMS, "step_time_s"];
/** What agents add for themselves. */
const INNER = new Set(["wall_time_s", "agent_time_s", "agent_device_time_s"]);
/** Charts at most: a request has 24 series. */
export const MOST_SERIES = 23;

/** @typedef {{id: number, name: string, title: string, state: string, world_size: number, first_step: number | null, last_step: number | null, series: string[]}} ComparedRun */

/** Names that two or more runs have, the usual ones first; and those of one run alone. @param {readonly Pick<ComparedRun, "series">[]} runs */
export function sharedSeries(runs) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { series } of runs) for (const name of series) if (!INNER.has(name)) counts.set(name, (counts.get(name) ?? 0) + 1);
  const place = (/** @type {string} */ name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  const names = [...counts.keys()].sort((a, b) => place(a) - place(b) || a.localeCompare(b, "en", { numeric: true }));
  return { shared: names.filter((name) => (counts.get(name) ?? 0) > 1), alone: names.filter((name) => counts.get(name) === 1) };
}

// What the server sends, as lines.

/** @typedef {{dtype: string, bdata: string}} Typed */
/** @typedef {{id: number, first_step: number | null, steps: Typed, seconds: Typed | null, tokens: Typed | null, series: Record<string, {mean: Typed, low: Typed, high: Typed}>, headroom: Typed}} RunLines */
/** @typedef {{run: number, x: number[], y: number[]}} Line `run`: its place among the runs */

/** Where the values of a run lie along the axis; null where the run has not logged it. @param {RunLines} run @param {Axis} axis @returns {ArrayLike<number> | null} */
function places(run, axis) {
  if (axis === "time") return run.seconds && decode(run.seconds);
  if (axis === "tokens") return run.tokens && decode(run.tokens);
  const steps = decode(run.steps);
  return axis === "relative" ? Array.from(steps, (step) => step - (run.first_step ?? 0)) : steps;
}

/** A line a run; with smoothing of the means, without through the least and greatest of each column, so that no spike is lost. @param {readonly RunLines[]} runs @param {string | null} name null: headroom @param {Axis} axis @param {number} smooth @returns {Line[]} */
export function linesOf(runs, name, axis, smooth) {
  return runs.flatMap((run, at) => {
    const x = places(run, axis);
    const own = name === null ? { mean: run.headroom, low: run.headroom, high: run.headroom } : run.series[name];
    if (!x || !own) return [];
    const line = smooth ? smoothed(x, decode(own.mean), smooth) : zigzag(x, decode(own.low), decode(own.high));
    return line.x.length ? [{ run: at, ...line }] : [];
  });
}

/** @param {ArrayLike<number>} x @param {ArrayLike<number>} low @param {ArrayLike<number>} high */
function zigzag(x, low, high) {
  /** @type {{x: number[], y: number[]}} */
  const line = { x: [], y: [] };
  for (let i = 0; i < x.length; i += 1) {
    if (!Number.isFinite(x[i]) || !Number.isFinite(low[i])) continue;
    for (const value of low[i] === high[i] ? [low[i]] : [low[i], high[i]]) {
      line.x.push(x[i]);
      line.y.push(value);
    }
  }
  return line;
}

/** A running mean that weighs what is past less and less, without the pull to 0 at its begin. @param {ArrayLike<number>} x @param {ArrayLike<number>} values @param {number} share of the mean before, 0 to 1 */
export function smoothed(x, values, share) {
  /** @type {{x: number[], y: number[]}} */
  const line = { x: [], y: [] };
  let mean = 0;
  let weight = 0;
  for (let i = 0; i < x.length; i += 1) {
    if (!Number.isFinite(x[i]) || !Number.isFinite(values[i])) continue;
    mean = share * mean + (1 - share) * values[i];
    weight = share * weight + (1 - share);
    line.x.push(x[i]);
    line.y.push(mean / weight);
  }
  return line;
}

/** The value of the point nearest to a place, if the line reaches there. @param {Line} line @param {number} at */
export function valueNear({ x, y }, at) {
  if (!x.length || at < x[0] || at > x[x.length - 1]) return null;
  let best = 0;
  for (let i = 1; i < x.length; i += 1) if (Math.abs(x[i] - at) < Math.abs(x[best] - at)) best = i;
  return y[best];
}

/** Seconds in the unit that suits the longest. @param {number} longest @returns {{divisor: number, unit: string}} */
export function timeUnit(longest) {
  if (longest >= 3 * 3600) return { divisor: 3600, unit: "h" };
  return longest >= 180 ? { divisor: 60, unit: "min" } : { divisor: 1, unit: "s" };
}

// Where runs part, as text.

/** @typedef {{step: number, values: (number | null)[]}} Apart */
/** @typedef {{run: number, start: number, stop: number, is_whole: boolean, steps_per_column: number, compared: number, differs: Apart | null, beyond: Apart | null}} Parting */

/** With five digits, or all where those do not tell them apart. @param {readonly (number | null)[]} values two of them */
function apart(values) {
  const written = (/** @type {number} */ digits) => values.map((value) => (value === null ? "NaN or Inf" : String(digits ? Number(value.toPrecision(digits)) : value)));
  const short = written(5);
  return new Set(short).size < values.length ? written(0) : short;
}

/** @param {number} n */
const whole = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

/** Exactly where, and with what tolerance. @param {Parting} parting @param {string} tolerance as text, "0.1 %" @returns {string} */
export function partingText({ start, stop, is_whole: isWhole, steps_per_column: per, compared, differs, beyond }, tolerance) {
  if (stop <= start) return "no step in common.";
  if (!compared) return "no step at which both logged a loss.";
  const columns = per > 1 ? ` (means of ${per} steps: retention has merged the rest)` : "";
  const reach = isWhole ? "" : ` The steps from ${whole(stop)} on were not compared.`;
  if (!differs) return `the loss is equal bit for bit at all ${whole(compared)} ${per > 1 ? "columns" : "steps"} that both logged${columns}.${reach}`;
  const [here, there] = apart(differs.values);
  const first = `the loss first differs at step ${whole(differs.step)}: ${here} and ${there}${columns}`;
  if (!beyond) return `${first}. It is never apart by more than ${tolerance}.${reach}`;
  if (beyond.step === differs.step) return `${first}, which is more than ${tolerance} apart.`;
  const [far, other] = apart(beyond.values);
  return `${first}. By more than ${tolerance} from step ${whole(beyond.step)} on: ${far} and ${other}.`;
}
