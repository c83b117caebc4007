// What to compare with: another step, another rank or another run, which a search finds. Writes the URL and nothing else.

import * as api from "../api.js";
import { el, replace } from "../dom.js";
import { clip, count } from "../format.js";
import { parseAgainst } from "./comparison_model.js";

/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {import("../types.js").Run} Run */

/** Typing rests this long before runs are looked for. Milliseconds. */
const REST_MS = 250;
const MOST_RUNS = 30;

const KINDS = { "": "nothing", step: "another step", rank: "another rank", run: "another run" };

/** @param {PageContext} ctx */
export function createComparisonPicker(ctx) {
  const kind = el("select", { "aria-label": "Compare with", change: chooseKind }, ...Object.entries(KINDS).map(([value, text]) => el("option", { value }, text)));
  const step = el("input", { type: "number", min: 0, step: 1, required: true, "aria-label": "Step to compare with" });
  const stepForm = el("form", { class: "inline-form", submit: chooseStep }, step, el("button", { type: "submit" }, "Compare"));
  const rank = el("select", { "aria-label": "Rank to compare with", change: () => rank.value && put("rank", rank.value) });
  const search = el("input", { type: "search", placeholder: "part of a run's name", "aria-label": "Part of the other run's name", spellcheck: "false", input: typed });
  const found = el("select", { "aria-label": "Run to compare with", change: () => found.value && put("run", found.value) });
  const runs = el("span", { class: "inline-form" }, search, found);
  const clear = el("button", { type: "button", class: "quiet", click: () => ctx.setState({ against: "" }) }, "Compare no more");
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
    else if (kind.value === "run") void look();
    else (kind.value === "step" ? step : rank).focus();
  }

  /** @param {Event} event */
  function chooseStep(event) {
    event.preventDefault();
    if (step.value !== "" && step.validity.valid) put("step", step.value);
  }

  function typed() {
    clearTimeout(rest);
    rest = setTimeout(look, REST_MS);
  }

  async function look() {
    searches += 1;
    const mine = searches;
    try {
      const { runs: listed } = await api.runs({ q: search.value.trim().slice(0, 200), limit: MOST_RUNS });
      if (mine === searches) list(listed.filter((one) => String(one.id) !== ctx.params.id));
    } catch (error) {
      if (mine === searches) replace(found, option("", error instanceof Error ? error.message : String(error)));
    }
  }

  /** @param {readonly import("../types.js").RunSummary[]} listed */
  function list(listed) {
    const now = parseAgainst(ctx.state.against);
    const options = listed.map((one) => option(one.id, `${clip(one.title || one.name, 60)} (run ${one.id})`));
    const isListed = now?.kind === "run" && listed.some((one) => one.id === now.number);
    if (now?.kind === "run" && !isListed) options.unshift(option(now.number, `run ${now.number}`));
    replace(found, option("", listed.length ? "choose a run" : "no other run has that in its name"), ...options);
    found.value = now?.kind === "run" ? String(now.number) : "";
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
      if (now?.kind === "run") void look();
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
