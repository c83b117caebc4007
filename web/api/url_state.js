// The view in the address: parsed, changed and formatted, with the shown steps and the order of tables. Pure.

/** @typedef {import("../types.js").ViewState} ViewState */

/** @type {ViewState} */
const EMPTY = Object.freeze({ start: null, stop: null, last: null, from: null, to: null, rank: null, step: null, tensor: null, kinds: [], q: "", key: "", axis: "", statistic: "", axes: "", sort: "", closed: [], against: "", orders: [], lanes: [], pin: null, measure: "", rows: "", columns: "", fold: "" });

const AXES = /** @type {const} */ (["steps", "time"]);
/** Of a figure: columns, rows, where it is not steps by tensors. */
const PAIRS = /** @type {const} */ (["step,rank", "tensor,rank"]);
/** Orders of the tensors other than that of their calls. */
const SORTS = /** @type {const} */ (["name", "worst"]);

/** Of the mesh. */
const AXIS = /^[A-Za-z][A-Za-z0-9_.-]{0,39}$/;

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
    pin: wholeNumber(query.get("pin")),
    measure: matching(query.get("measure"), /^[a-z][a-z_]{0,39}$/),
    rows: matching(query.get("rows"), AXIS),
    columns: matching(query.get("columns"), AXIS),
    fold: matching(query.get("fold"), AXIS),
    lanes: soundLanes(query.getAll("lane")),
  });
}

/** What an address asks for and no view can have, as it stands there: "start=9", "ranks=x". @param {string} search @returns {string[]} */
export function leftOut(search) {
  const read = new URLSearchParams(formatState(parseState(search)));
  const isRead = (/** @type {string} */ name, /** @type {string} */ value) => read.getAll(name).some((one) => one === value || Number(one) === Number(value));
  return [...new URLSearchParams(search)].flatMap(([name, value]) => (value === "" || isRead(name, value) ? [] : [`${name}=${value}`]));
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
  for (const name of /** @type {const} */ (["step", "rank", "tensor", "start", "stop", "last", "from", "to", "pin"])) {
    if (full[name] !== null) query.set(name, String(full[name]));
  }
  for (const kind of full.kinds) query.append("kind", kind);
  for (const name of /** @type {const} */ (["q", "key", "axis", "statistic", "axes", "sort", "against", "measure", "rows", "columns", "fold"])) {
    if (full[name]) query.set(name, full[name]);
  }
  for (const group of full.closed) query.append("closed", group);
  for (const order of full.orders) query.append("order", order);
  for (const lane of full.lanes) query.append("lane", lane);
  const text = query.toString();
  return text ? `?${text}` : "";
}

/**
 * The view a link inside a run leads to: of what is shown, only the steps and the pinned rank go along.
 * @param {Partial<Pick<ViewState, "start" | "stop" | "last" | "pin">>} state @param {Partial<ViewState>} [patch] @returns {Partial<ViewState>}
 */
export const onward = ({ start = null, stop = null, last = null, pin = null }, patch = {}) => ({ start, stop, last, ...(pin === null ? {} : { pin }), ...patch });

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

// The order that a reader chose for a table, as the address has it: "overflow-table.was-first.down".

/** @typedef {{column: string, isDown: boolean}} Order column: its key */

const WRITTEN = /^([a-z][a-z0-9-]{0,39})\.([a-z0-9-]{1,60})\.(up|down)$/;

/** What an address calls a column. @param {string} name */
export const columnKey = (name) => name.toLowerCase().replace(/[^a-z0-9]+/g, "-");

/** @param {string} text */
const tableOf = (text) => WRITTEN.exec(text)?.[1];

/** Those that can be read, one of a table, in one order. @param {readonly string[]} texts @returns {string[]} */
function soundOrders(texts) {
  const tables = texts.map(tableOf);
  return texts.filter((_, i) => tables[i] && tables.indexOf(tables[i]) === i).sort();
}

/** What is asked of a table; null: nothing, so its usual order. @param {readonly string[]} orders @param {string} table @returns {Order | null} */
export function orderOf(orders, table) {
  const [, , column, way] = WRITTEN.exec(orders.find((text) => tableOf(text) === table) ?? "") ?? [];
  return column ? { column, isDown: way === "down" } : null;
}

/** With another order of one table; null: its usual one, which no address names. @param {readonly string[]} orders @param {string} table @param {Order | null} order */
export function withOrder(orders, table, order) {
  const others = orders.filter((text) => tableOf(text) !== table);
  return soundOrders(order ? [...others, `${table}.${order.column}.${order.isDown ? "down" : "up"}`] : others);
}

// How a reader wants lanes to be shown, as the address has it: "loss.pin.log". The pinned ones stand first, in this order.

/** @typedef {"pin" | "log" | "smooth" | "max"} LaneFlag */

const LANE = /^([a-z][a-z0-9_-]{0,39})((?:\.(?:pin|log|smooth|max))+)$/;

/** @param {string} text */
const laneOf = (text) => LANE.exec(text)?.[1];

/** Those that can be read, one of a lane. @param {readonly string[]} texts */
function soundLanes(texts) {
  const names = texts.map(laneOf);
  return texts.filter((_, i) => names[i] && names.indexOf(names[i]) === i);
}

/** @param {readonly string[]} lanes @param {string} name @returns {Set<LaneFlag>} */
export function laneFlags(lanes, name) {
  const text = lanes.find((one) => laneOf(one) === name) ?? "";
  return new Set(/** @type {LaneFlag[]} */ (text.split(".").slice(1)));
}

/** Names of the pinned lanes in their order. @param {readonly string[]} lanes */
export const pinnedLanes = (lanes) => lanes.flatMap((text) => (laneFlags([text], laneOf(text) ?? "").has("pin") ? [String(laneOf(text))] : []));

/** With a flag of a lane the other way. @param {readonly string[]} lanes @param {string} name @param {LaneFlag} flag */
export function withLaneFlag(lanes, name, flag) {
  const flags = laneFlags(lanes, name);
  if (!flags.delete(flag)) flags.add(flag);
  const text = [name, ...flags].join(".");
  const known = lanes.some((one) => laneOf(one) === name);
  return soundLanes(known ? lanes.map((one) => (laneOf(one) === name ? text : one)) : [...lanes, text]);
}

/** With these lanes pinned in this order, and no others. @param {readonly string[]} lanes @param {readonly string[]} names */
export function withPinned(lanes, names) {
  const pinned = names.map((name) => [name, "pin", ...[...laneFlags(lanes, name)].filter((flag) => flag !== "pin")].join("."));
  const others = lanes.filter((one) => !names.includes(laneOf(one) ?? "")).map((one) => one.replace(".pin", ""));
  return soundLanes([...pinned, ...others]);
}

// The shown steps as a window on those of the run: panned, zoomed, dragged, following.

/** @typedef {import("../types.js").StepRange} StepRange */
/** @typedef {{first_step: number | null, last_step: number | null}} Reach */
/** What a drag moves: an edge, the window, or it makes a new one. @typedef {"start" | "stop" | "pan" | "select"} Grip */

/** A line needs two of them. Steps. */
const LEAST = 2;
/** An edge is taken hold of this far off. Pixels. */
const REACH = 8;

/** @param {Reach} run */
export const wholeOf = (run) => shownRange({ start: null, stop: null }, run);

/** @param {StepRange} range */
export const widthOf = ({ start, stop }) => stop - start;

/** The window that is drawn: what is shown, as far as the run has it. @param {ViewState} state @param {Reach} run @returns {StepRange} */
export function windowOf(state, run) {
  const whole = wholeOf(run);
  const { start, stop } = shownRange(state, run);
  return { start: Math.max(start, whole.start), stop: Math.min(stop, whole.stop) };
}

/** Whether new steps move the right edge. @param {Pick<ViewState, "stop">} state */
export const isFollowing = ({ stop }) => stop === null;

/** The same width elsewhere, no further than the run goes. @param {StepRange} window @param {StepRange} whole @param {number} by steps @returns {StepRange} */
export function panned(window, whole, by) {
  const start = clamp(Math.round(window.start + by), whole.start, whole.stop - widthOf(window));
  return { start, stop: start + widthOf(window) };
}

/** Wider or narrower about its middle. @param {StepRange} window @param {StepRange} whole @param {number} factor under 1 shows fewer steps @returns {StepRange} */
export function zoomed(window, whole, factor) {
  const width = clamp(Math.round(widthOf(window) * factor), Math.min(LEAST, widthOf(whole)), widthOf(whole));
  const start = window.start + Math.round((widthOf(window) - width) / 2);
  return panned({ start, stop: start + width }, whole, 0);
}

/** As the URL has it: all steps need no edges. @param {StepRange} window @param {StepRange} whole @returns {Partial<ViewState>} */
export function patchOf(window, whole) {
  return widthOf(window) >= widthOf(whole) ? { start: null, stop: null } : { start: window.start, stop: window.stop };
}

/** How the URL states that the newest steps are shown. @param {number} width @param {StepRange} whole @returns {Partial<ViewState>} */
const newest = (width, whole) => ({ last: width >= widthOf(whole) ? null : width });

/** @param {ViewState} state @param {Reach} run @param {number} share of the window; negative: earlier @returns {Partial<ViewState>} */
export function panPatch(state, run, share) {
  const whole = wholeOf(run);
  const window = windowOf(state, run);
  const next = panned(window, whole, Math.sign(share) * Math.max(1, Math.round(Math.abs(share) * widthOf(window))));
  return next.start === window.start ? {} : patchOf(next, whole);
}

/** Who follows the newest step goes on doing so. @param {ViewState} state @param {Reach} run @param {number} factor @returns {Partial<ViewState>} */
export function zoomPatch(state, run, factor) {
  const whole = wholeOf(run);
  const window = windowOf(state, run);
  const next = zoomed(window, whole, factor);
  if (widthOf(next) === widthOf(window)) return {};
  return isFollowing(state) ? newest(widthOf(next), whole) : patchOf(next, whole);
}

/** Holds the shown steps fast, or lets them move with the newest one. @param {ViewState} state @param {Reach} run @returns {Partial<ViewState>} */
export function followPatch(state, run) {
  const window = windowOf(state, run);
  return isFollowing(state) ? window : newest(widthOf(window), wholeOf(run));
}

/**
 * What a press takes hold of.
 * @param {number} x @param {number} width both in pixels @param {StepRange} window @param {StepRange} whole @returns {Grip}
 */
export function gripAt(x, width, window, whole) {
  const at = (/** @type {number} */ step) => ((step - whole.start) / widthOf(whole)) * width;
  const [left, right] = [at(window.start), at(window.stop)];
  if (Math.abs(x - left) <= REACH && Math.abs(x - left) <= Math.abs(x - right)) return "start";
  if (Math.abs(x - right) <= REACH) return "stop";
  const isAll = widthOf(window) >= widthOf(whole);
  return x > left && x < right && !isAll ? "pan" : "select";
}

/**
 * The window that a drag makes.
 * @param {Grip} grip @param {number} from @param {number} to places on the strip, 0 to 1 @param {StepRange} window before it @param {StepRange} whole @returns {StepRange}
 */
export function draggedWindow(grip, from, to, window, whole) {
  const moved = Math.round((to - from) * widthOf(whole));
  const least = Math.min(LEAST, widthOf(whole));
  if (grip === "pan") return panned(window, whole, moved);
  if (grip === "start") return { start: clamp(window.start + moved, whole.start, window.stop - least), stop: window.stop };
  if (grip === "stop") return { start: window.start, stop: clamp(window.stop + moved, window.start + least, whole.stop) };
  const [low, high] = [from, to].map((place) => whole.start + clamp(place, 0, 1) * widthOf(whole)).sort((a, b) => a - b);
  const start = clamp(Math.floor(low), whole.start, whole.stop - least);
  return { start, stop: clamp(Math.ceil(high), start + least, whole.stop) };
}

/** @param {number} value @param {number} low @param {number} high */
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

// Which steps the reader wants to see, as opposed to how far the run has come.

/** The same as long as nobody chooses other steps, though there are ever more of them. @param {{state: import("../types.js").ViewState}} view @param {number} [columns] */
export const viewKey = ({ state: { start, stop, last, fold } }, columns = 0) => JSON.stringify([start, stop, last, fold, columns]);
