// URL <-> view. The query holds the whole view, so a link shows what its sender saw and Back works.

import { soundOrders } from "./table_order.js";

/** @typedef {import("./types.js").ViewState} ViewState */

/** @type {ViewState} */
const EMPTY = Object.freeze({ start: null, stop: null, last: null, from: null, to: null, rank: null, step: null, tensor: null, kinds: [], q: "", key: "", axis: "", statistic: "", axes: "", sort: "", closed: [], against: "", orders: [] });

const AXES = /** @type {const} */ (["steps", "time"]);
/** Of a figure: columns, rows, where it is not steps by tensors. */
const PAIRS = /** @type {const} */ (["step,rank", "tensor,rank"]);
/** Orders of the tensors other than that of their calls. */
const SORTS = /** @type {const} */ (["name", "worst"]);

/** @param {string | null} text @returns {number | null} */
function wholeNumber(text) {
  return text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
}

/** @param {string} search @returns {ViewState} */
export function parseState(search) {
  const query = new URLSearchParams(search);
  const rank = query.get("rank");
  return withSoundRange({
    start: wholeNumber(query.get("start")),
    stop: wholeNumber(query.get("stop")),
    last: wholeNumber(query.get("last")) || null,
    from: wholeNumber(query.get("from")),
    to: wholeNumber(query.get("to")),
    rank: rank === "all" ? "all" : wholeNumber(rank),
    step: wholeNumber(query.get("step")),
    tensor: wholeNumber(query.get("tensor")),
    kinds: query.getAll("kind").filter(Boolean),
    q: query.get("q") ?? "",
    key: query.get("key") ?? "",
    axis: AXES.find((axis) => axis === query.get("axis")) ?? "",
    statistic: matching(query.get("statistic"), /^[a-z][a-z0-9_-]{0,59}$/),
    axes: PAIRS.find((pair) => pair === query.get("axes")) ?? "",
    sort: SORTS.find((sort) => sort === query.get("sort")) ?? "",
    closed: query.getAll("closed").filter(Boolean),
    against: matching(query.get("against"), /^(step|rank|run):\d{1,15}$/),
    orders: soundOrders(query.getAll("order")),
  });
}

/** @param {string | null} text @param {RegExp} pattern */
const matching = (text, pattern) => (text !== null && pattern.test(text) ? text : "");

/** Steps that were named count for more than the newest ones. @param {ViewState} state @returns {ViewState} */
function withSoundRange(state) {
  const { start, stop } = state;
  const crossed = start !== null && stop !== null && stop <= start;
  const timed = withSoundTimes(state);
  const sound = crossed ? { ...timed, start: null, stop: null } : timed;
  return sound.start !== null || sound.stop !== null ? { ...sound, last: null } : sound;
}

/** Times are shown from one to the other, or not at all. @param {ViewState} state @returns {ViewState} */
function withSoundTimes(state) {
  const { from, to } = state;
  return from !== null && to !== null && to > from ? state : { ...state, from: null, to: null };
}

/** The view after a change of some of it: choosing steps lets go of the newest ones, and either of a part of the time axis. @param {ViewState} state @param {Partial<ViewState>} patch @returns {ViewState} */
export function changedState(state, patch) {
  const choosesSteps = "start" in patch || "stop" in patch;
  const followsNewest = "last" in patch;
  const times = choosesSteps || followsNewest ? { from: null, to: null } : {};
  return withSoundRange({ ...state, ...times, ...(choosesSteps ? { last: null } : {}), ...(followsNewest ? { start: null, stop: null } : {}), ...patch });
}

/** In one fixed order, so that one view has one URL. @param {Partial<ViewState>} state @returns {string} */
export function formatState(state) {
  const full = { ...EMPTY, ...state };
  const query = new URLSearchParams();
  for (const name of /** @type {const} */ (["step", "rank", "tensor", "start", "stop", "last", "from", "to"])) {
    if (full[name] !== null) query.set(name, String(full[name]));
  }
  for (const kind of full.kinds) query.append("kind", kind);
  for (const name of /** @type {const} */ (["q", "key", "axis", "statistic", "axes", "sort", "against"])) {
    if (full[name]) query.set(name, full[name]);
  }
  for (const group of full.closed) query.append("closed", group);
  for (const order of full.orders) query.append("order", order);
  const text = query.toString();
  return text ? `?${text}` : "";
}

/**
 * The view a link inside a run leads to: of what is shown, only the steps go along.
 * @param {Partial<Pick<ViewState, "start" | "stop" | "last">>} state @param {Partial<ViewState>} [patch] @returns {Partial<ViewState>}
 */
export const onward = ({ start = null, stop = null, last = null }, patch = {}) => ({ start, stop, last, ...patch });

/**
 * The address of a run's page with a view.
 * @param {string | number} run @param {"" | "layers" | "loss-scale" | "tensor" | "step" | "collectives" | "hang" | "gpus" | "gpu" | "environment" | "alerts" | "agent"} page @param {Partial<ViewState>} [state]
 */
export function runPath(run, page, state = {}) {
  return `/runs/${encodeURIComponent(run)}${page && `/${page}`}${formatState(state)}`;
}

/**
 * The steps to show: what the URL asks for within what the run has. Without a right edge it is the newest step, whichever that is.
 * @param {Pick<ViewState, "start" | "stop"> & {last?: number | null}} state @param {{first_step: number | null, last_step: number | null}} run
 */
export function shownRange({ start, stop, last = null }, run) {
  const first = run.first_step ?? 0;
  const end = (run.last_step ?? first) + 1;
  const from = start ?? (last !== null && stop === null ? Math.max(first, end - last) : first);
  const shown = Math.min(from, end - 1);
  return { start: shown, stop: Math.max(stop ?? end, shown + 1) };
}
