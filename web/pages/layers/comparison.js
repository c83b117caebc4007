// The comparison on the Layers page: the picker of what to compare with, the difference as a picture, and as a table.

import * as api from "../../api/client.js";
import { onward, runPath } from "../../api/url_state.js";
import { stateLabel } from "../../charts/statistics.js";
import { createPlainLanes } from "../../charts/lanes/lane_group.js";
import { el, link, replace } from "../../format/dom.js";
import { bits, capital, clip, count, rankName, steps } from "../../format/numbers.js";
import { createSortedTable } from "../../widgets/tables/sorted_table.js";
import { comparisonSpec, difference, notesOf, parseAgainst, sidesOf } from "./comparison_model.js";

/** @typedef {import("../../types.js").PageContext} PageContext */
/** @typedef {import("../../charts/lanes/lane.js").View} View */
/** @typedef {import("./comparison_model.js").ComparisonModel} ComparisonModel */

/** @param {PageContext} ctx @param {() => void} refetch */
export function createComparison(ctx, refetch) {
  const picker = createComparisonPicker(ctx);
  const body = el("div", { class: "comparison-body" });
  const element = el("section", { class: "comparison", "aria-label": "Comparison" }, picker.element, body);
  /** @type {ReturnType<typeof createBody> | null} */
  let open = null;
  let shown = "";

  function close() {
    open?.destroy();
    open = null;
    replace(body);
  }

  return {
    element,
    /** @param {View} view @param {AbortSignal} signal */
    async update(view, signal) {
      const { against } = view.state;
      const key = JSON.stringify([against, view.state.rank]);
      picker.update(view.run);
      if (key !== shown || !against) close();
      shown = key;
      if (!against) return;
      if (!open) {
        open = createBody(ctx, refetch);
        replace(body, open.element);
      }
      await open.update(view, signal);
    },
    destroy() {
      close();
      picker.destroy();
    },
  };
}

/** One comparison, from when it is chosen until another is. @param {PageContext} ctx @param {() => void} refetch */
function createBody(ctx, refetch) {
  const sides = sidesOf(parseAgainst(ctx.state.against), ctx.state.rank);
  const table = createComparisonTable(ctx, sides);
  const notes = el("ul", { class: "comparison-notes muted" });
  const picked = {
    pick: (/** @type {import("../../charts/lanes/lane.js").Lane} */ lane, /** @type {import("../../charts/lanes/lane_pointer.js").Spot} */ spot) => void (spot.row !== null && choose(lane, spot.row)),
    pickLabel: choose,
  };
  const lanes = createPlainLanes(ctx, [{ spec: comparisonSpec(ctx), options: { query, title, onModel: show, onFailed } }], picked, refetch);

  /** @param {import("../../charts/lanes/lane.js").Lane} lane @param {number} row */
  function choose(lane, row) {
    const chosen = lane.rows()[row];
    if (chosen.tensor !== null) ctx.setState({ tensor: chosen.tensor });
    else ctx.notify(`This row stands for ${chosen.count} tensors: a name filter or fewer kinds opens it up.`);
  }

  /** @param {ComparisonModel} model */
  function show({ meta }) {
    table.update(meta.losses ?? []);
    replace(notes, ...notesOf(meta).map((note) => el("li", {}, note)));
  }

  /** The lane shows why; the text under it is of another view then. */
  function onFailed() {
    table.element.hidden = true;
    replace(notes);
  }

  return {
    element: el("div", {}, lanes.element, notes, table.element),
    update: lanes.update,
    destroy: lanes.destroy,
  };
}

/** @param {View} view */
const query = ({ state }) => ({ rank: state.rank ?? "all", kind: state.kinds, q: state.q, against: state.against });

/** @param {View} view */
function title({ state }) {
  const against = parseAgainst(state.against);
  const here = state.rank === null || state.rank === "all" ? "worst of all ranks" : rankName(state.rank);
  return `Difference in headroom, ${here} compared with ${against?.kind} ${against?.number ?? ""}, call order`;
}

// What to compare with: another step, another rank or another run, which a search finds. Writes the URL and nothing else.

/** @typedef {import("../../types.js").Run} Run */

/** Typing rests this long before runs are searched. Milliseconds. */
const REST_MS = 250;
const MOST_RUNS = 30;

const KINDS = { "": "nothing", step: "another step", rank: "another rank", run: "another run" };

/** @param {PageContext} ctx */
function createComparisonPicker(ctx) {
  const kind = el("select", { "aria-label": "Compare with", change: chooseKind }, ...Object.entries(KINDS).map(([value, text]) => el("option", { value }, text)));
  const step = el("input", { type: "number", min: 0, step: 1, required: true, "aria-label": "Step to compare with" });
  const stepForm = el("form", { class: "inline-form", submit: chooseStep }, step, el("button", { type: "submit" }, "Compare"));
  const rank = el("select", { "aria-label": "Rank to compare with", change: () => rank.value && put("rank", rank.value) });
  const search = el("input", { type: "search", placeholder: "part of a run's name", "aria-label": "Part of the other run's name", spellcheck: "false", input: typed });
  const matches = el("select", { "aria-label": "Run to compare with", change: () => matches.value && put("run", matches.value) });
  const runs = el("span", { class: "inline-form" }, search, matches);
  const clear = el("button", { type: "button", class: "quiet", click: () => ctx.setState({ against: "" }) }, "Stop comparing");
  const element = el("div", { class: "comparison-picker filters", role: "group", "aria-label": "Comparison" }, el("label", { class: "field" }, "Compare with ", kind), stepForm, rank, runs, clear);
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let rest;
  /** @type {string | null} */
  let shown = null;
  /** Of several searches under way the last counts; after the end none. */
  let searches = 0;

  /** @param {string} name @param {string} number */
  const put = (name, number) => ctx.setState({ against: `${name}:${Number(number)}` });

  function chooseKind() {
    show();
    if (!kind.value) ctx.setState({ against: "" });
    else if (kind.value === "run") void searchRuns();
    else (kind.value === "step" ? step : rank).focus();
  }

  /** @param {Event} event */
  function chooseStep(event) {
    event.preventDefault();
    if (step.value !== "" && step.validity.valid) put("step", step.value);
  }

  function typed() {
    clearTimeout(rest);
    rest = setTimeout(searchRuns, REST_MS);
  }

  async function searchRuns() {
    searches += 1;
    const mine = searches;
    try {
      const { runs: listed } = await api.runs({ q: search.value.trim().slice(0, 200), limit: MOST_RUNS });
      if (mine === searches) list(listed.filter((one) => String(one.id) !== ctx.params.id));
    } catch (error) {
      if (mine === searches) replace(matches, option("", error instanceof Error ? error.message : String(error)));
    }
  }

  /** @param {readonly import("../../types.js").RunSummary[]} listed */
  function list(listed) {
    const now = parseAgainst(ctx.state.against);
    const options = listed.map((one) => option(one.id, `${clip(one.title || one.name, 60)} (run ${one.id})`));
    const isListed = now?.kind === "run" && listed.some((one) => one.id === now.number);
    if (now?.kind === "run" && !isListed) options.unshift(option(now.number, `run ${now.number}`));
    replace(matches, option("", listed.length ? "choose a run" : "no other run has that in its name"), ...options);
    matches.value = now?.kind === "run" ? String(now.number) : "";
  }

  function show() {
    stepForm.hidden = kind.value !== "step";
    rank.hidden = kind.value !== "rank";
    runs.hidden = kind.value !== "run";
    clear.hidden = ctx.state.against === "";
  }

  /** @param {Run} run */
  function showRun(run) {
    if (run.last_step !== null) step.max = String(run.last_step);
    step.placeholder = run.last_step === null ? "" : `${run.first_step ?? 0} to ${run.last_step}`;
    const ranks = run.ranks.map((one) => one.rank);
    if (rank.options.length !== ranks.length + 1) replace(rank, option("", "choose a rank"), ...ranks.map((one) => option(one, `rank ${count(one)}`)));
    const now = parseAgainst(ctx.state.against);
    if (now?.kind === "rank" && document.activeElement !== rank) rank.value = String(now.number);
  }

  show();
  return {
    element,
    /** @param {Run} run */
    update(run) {
      showRun(run);
      if (shown === ctx.state.against) return; // a live run must not take away what is half chosen
      shown = ctx.state.against;
      const now = parseAgainst(ctx.state.against);
      kind.value = now?.kind ?? "";
      if (now?.kind === "step") step.value = String(now.number);
      if (now?.kind === "run") void searchRuns();
      show();
    },
    destroy() {
      searches += 1;
      clearTimeout(rest);
    },
  };
}

/** @param {string | number} value @param {string} text */
const option = (value, text) => el("option", { value }, text);

// A comparison as a table: the layers that have lost most headroom, what either side has, and the way to each.

/** @typedef {import("./comparison_model.js").Loss} Loss */
/** @typedef {Loss & {view: import("../../types.js").ViewState}} Row `view`: what its links take along, so that they follow what is shown */

/** @param {number | null} value @param {string} state */
const held = (value, state) => (value === null || state === "nan" || state === "inf" ? stateLabel(state) : bits(value));

/** @param {import("../../types.js").PageContext} ctx @param {import("./comparison_model.js").Sides} sides */
function createComparisonTable(ctx, sides) {
  const name = (/** @type {Row} */ loss) => link(runPath(ctx.params.id, "layers", { ...loss.view, tensor: loss.tensor }), { class: "name breaks", title: loss.label }, clip(loss.label));
  const where = (/** @type {Row} */ { start, stop, view }) => {
    const rank = typeof view.rank === "number" ? view.rank : null;
    const text = steps({ start, stop });
    return stop - start === 1 && rank !== null ? link(runPath(ctx.params.id, "step", onward(view, { step: start, rank })), {}, text) : text;
  };
  const columns = [
    { name: "Layer", by: (/** @type {Row} */ loss) => loss.label, show: name },
    { name: "Difference", by: (/** @type {Row} */ loss) => loss.difference_bits, show: change, isNumber: true, help: "Headroom here less that of the other side" },
    { name: capital(sides.here), key: "here", by: (/** @type {Loss} */ loss) => loss.bits, show: (/** @type {Loss} */ loss) => held(loss.bits, loss.state), isNumber: true },
    { name: capital(sides.there), key: "there", by: (/** @type {Loss} */ loss) => loss.other_bits, show: (/** @type {Loss} */ loss) => held(loss.other_bits, loss.other_state), isNumber: true },
    { name: "Types", show: types },
    { name: "Where", by: (/** @type {Loss} */ loss) => loss.start, show: where, isNumber: true },
  ];
  const table = createSortedTable(ctx, columns, { caption: "Greatest loss of headroom first: NaN or Inf on this side alone, then bits", name: "comparison-table" });
  return {
    element: table.element,
    /** @param {readonly Loss[]} losses */
    update: (losses) => table.update(losses.map((loss) => ({ ...loss, view: ctx.state }))),
  };
}

/** @param {Loss} loss */
const change = ({ difference_bits: value }) => el("span", { class: value === null || value < -0.005 ? "is-loss" : null }, value === null ? "NaN or Inf here only" : difference(value));

/** @param {Loss} loss */
const types = ({ dtype, other_dtype: other }) => (dtype === other ? dtype : `${dtype}, there ${other}`);
