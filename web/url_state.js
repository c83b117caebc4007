// URL <-> view. The query holds the whole view, so a link shows what its sender saw and Back works.

/** @typedef {import("./types.js").ViewState} ViewState */

/** @type {ViewState} */
const EMPTY = Object.freeze({ start: null, stop: null, rank: null, step: null, tensor: null, kinds: [], q: "", key: "" });

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
    rank: rank === "all" ? "all" : wholeNumber(rank),
    step: wholeNumber(query.get("step")),
    tensor: wholeNumber(query.get("tensor")),
    kinds: query.getAll("kind").filter(Boolean),
    q: query.get("q") ?? "",
    key: query.get("key") ?? "",
  });
}

/** @param {ViewState} state @returns {ViewState} */
function withSoundRange(state) {
  const crossed = state.start !== null && state.stop !== null && state.stop <= state.start;
  return crossed ? { ...state, start: null, stop: null } : state;
}

/** In one fixed order, so that one view has one URL. @param {Partial<ViewState>} state @returns {string} */
export function formatState(state) {
  const full = { ...EMPTY, ...state };
  const query = new URLSearchParams();
  for (const name of /** @type {const} */ (["step", "rank", "tensor", "start", "stop"])) {
    if (full[name] !== null) query.set(name, String(full[name]));
  }
  for (const kind of full.kinds) query.append("kind", kind);
  if (full.q) query.set("q", full.q);
  if (full.key) query.set("key", full.key);
  const text = query.toString();
  return text ? `?${text}` : "";
}

/**
 * The address of a run's page with a view.
 * @param {string | number} run @param {"" | "layers" | "tensor" | "step" | "collectives" | "hang" | "gpus" | "gpu" | "environment"} page @param {Partial<ViewState>} [state]
 */
export function runPath(run, page, state = {}) {
  return `/runs/${encodeURIComponent(run)}${page && `/${page}`}${formatState(state)}`;
}

/**
 * The steps to show: what the URL asks for within what the run has.
 * @param {Pick<ViewState, "start" | "stop">} state @param {{first_step: number | null, last_step: number | null}} run
 */
export function shownRange(state, run) {
  const first = run.first_step ?? 0;
  const end = (run.last_step ?? first) + 1;
  const start = Math.min(state.start ?? first, end - 1);
  return { start, stop: Math.max(state.stop ?? end, start + 1) };
}
