// The Compare page: several runs' series laid over each other, where they part, and what was set otherwise.

import * as api from "../../api/client.js";
import { createRefresher } from "../../api/live.js";
import { runsPath } from "../../api/run_query.js";
import { el, replace } from "../../format/dom.js";
import { clip, count, plural } from "../../format/numbers.js";
import { reuseParts } from "../../format/reuse_rows.js";
import { errorState, mayHeal } from "../../widgets/states/error_state.js";
import { createChart } from "./compare_charts.js";
import { AXES, MOST_SERIES, SMOOTHS, TOLERANCES, formatCompare, linesOf, optionOf, parseCompare, refusal, sharedSeries } from "./compare_model.js";
import { legend, nothingToCompare, partings, settings, tensors } from "./compare_tables.js";

/** @typedef {import("./compare_model.js").CompareQuery} CompareQuery */

const COLUMNS = 600;
/** @type {Record<string, string>} */
const TITLES = { loss: "Loss", step_time_s: "Step time, s", loss_scale: "Loss scale" };
/** What agents record of a step; what programs log has the name they gave it. */
const PHASES = { data_wait_s: "Data wait, s", forward_s: "Forward, s", backward_s: "Backward, s", exposed_comm_s: "Exposed communication, s", optimizer_s: "Optimizer, s", other_s: "Other time of a step, s", skipped_step: "Skipped steps", found_inf: "found_inf" };

/** @param {HTMLElement} root @param {import("../../types.js").PageContext} ctx */
function mount(root, ctx) {
  const refresher = createRefresher(load, failed);
  const controls = createControls(ctx);
  const total = el("span", { class: "run-details" });
  const top = el("div");
  const notes = el("p", { class: "muted compare-notes" });
  const grid = el("div", { class: "compare-charts" });
  const below = el("div");
  const others = el("a", { href: "/" }, "Choose other runs");
  const page = el("div", { class: "compare-page" }, el("header", { class: "run-header" }, el("h1", {}, "Compare runs"), total, el("span", { class: "compare-bar" }, others)), top, controls.element, notes, grid, below);
  /** @type {Map<string, ReturnType<typeof createChart>>} */
  const charts = new Map();
  /** @type {Set<number>} */
  const heard = new Set();

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const query = parseCompare(location.search);
    const reason = refusal(query.runs, query.unread);
    if (reason) return replace(root, nothingToCompare(reason, query.runs));
    const found = await api.compare(query.runs, query.tolerance, signal);
    const { shared, alone } = sharedSeries(found.runs);
    const names = shared.slice(0, MOST_SERIES);
    const { runs } = await api.compareSeries(query.runs, names, COLUMNS, signal);
    if (page.parentElement !== root) replace(root, page);
    listen(query.runs);
    total.textContent = plural(found.runs.length, "run");
    others.href = runsPath({ picked: query.runs });
    controls.update(query, runs);
    reuseParts(top, legend(found, query), partings(found, query), tensors(found));
    replace(notes, ...notesOf(found.runs, runs, query, shared, alone));
    reuseParts(below, settings(found));
    await drawAll(names, runs, query, found.runs);
  }

  /** @param {readonly string[]} names @param {import("./compare_model.js").RunLines[]} runs @param {CompareQuery} query @param {readonly import("./compare_model.js").ComparedRun[]} compared */
  async function drawAll(names, runs, { axis, smooth, isLog }, compared) {
    const after = names.findIndex((name) => !(name in TITLES) && !name.includes("norm"));
    const order = after < 0 ? [...names, null] : [...names.slice(0, after), null, ...names.slice(after)];
    const wanted = order.map((name) => ({ name, key: name ?? "headroom of all", lines: linesOf(runs, name, axis, smooth) })).filter(({ lines }) => lines.length);
    for (const key of [...charts.keys()]) if (!wanted.some((one) => one.key === key)) drop(key);
    await Promise.all(wanted.map(({ name, key, lines }) => chartOf(key, name).update(lines, { axis, smooth, isLog: isLog && name !== null }, compared)));
  }

  /** At its place: charts come in the order they are asked for. @param {string} key @param {string | null} name null: headroom */
  function chartOf(key, name) {
    const chart = charts.get(key) ?? (name === null ? createChart("Least headroom, bits", "headroom") : createChart({ ...TITLES, ...PHASES }[name] ?? clip(name, 60), name));
    charts.set(key, chart);
    grid.append(chart.element);
    return chart;
  }

  /** @param {string} key */
  function drop(key) {
    charts.get(key)?.destroy();
    charts.get(key)?.element.remove();
    charts.delete(key);
  }

  /** @param {readonly number[]} runs */
  function listen(runs) {
    for (const run of runs) if (!heard.has(run)) ctx.onChange(String(run), refresher.soon);
    for (const run of runs) heard.add(run);
  }

  /** @param {unknown} error */
  function failed(error) {
    const heals = mayHeal(error);
    if (!heals || page.parentElement !== root) replace(root, errorState(error, ctx));
    return heals;
  }

  ctx.onState(refresher.now);
  refresher.now();
  return () => {
    refresher.stop();
    for (const key of [...charts.keys()]) drop(key);
  };
}

/**
 * What is not drawn, and why.
 * @param {readonly import("./compare_model.js").ComparedRun[]} about @param {readonly import("./compare_model.js").RunLines[]} runs
 * @param {CompareQuery} query @param {readonly string[]} shared @param {readonly string[]} alone
 */
function notesOf(about, runs, { axis }, shared, alone) {
  const notes = [];
  if (!shared.length) notes.push("No series was logged by two of these runs.");
  if (shared.length > MOST_SERIES) notes.push(`${count(shared.length - MOST_SERIES)} more series are not drawn.`);
  if (alone.length) notes.push(`Logged by one run only: ${clip(alone.join(", "), 300)}.`);
  const without = axis === "time" || axis === "tokens" ? about.filter((_, i) => !runs[i][axis === "time" ? "seconds" : "tokens"]) : [];
  if (without.length) notes.push(`Without ${axis}, so not drawn: ${without.map(({ title, name }) => clip(title || name, 60)).join(", ")}.`);
  return [notes.join(" ")];
}

// Axis, smoothing and tolerance. Each choice writes the address and nothing else.

/** @param {import("../../types.js").PageContext} ctx */
function createControls(ctx) {
  const go = (/** @type {Partial<CompareQuery>} */ patch) => ctx.navigate(formatCompare({ ...parseCompare(location.search), ...patch }));
  const axis = select(AXES, (value) => go({ axis: /** @type {CompareQuery["axis"]} */ (value) }));
  const smooth = select(SMOOTHS, (value) => go({ smooth: Number(value) }));
  const tolerance = select(TOLERANCES, (value) => go({ tolerance: Number(value) || 0.001 }));
  const log = el("input", { type: "checkbox", change: () => go({ isLog: log.checked }) });
  const field = (/** @type {string} */ name, /** @type {HTMLElement} */ control) => el("label", { class: "field" }, `${name} `, control);
  return {
    element: el("form", { class: "filters", "aria-label": "How lines are drawn", submit: (/** @type {Event} */ event) => event.preventDefault() }, field("Over", axis), field("Smoothing", smooth), el("label", { class: "field" }, log, " Log axis"), field("Apart by more than", tolerance)),
    /** @param {CompareQuery} query @param {readonly import("./compare_model.js").RunLines[]} runs */
    update(query, runs) {
      axis.value = query.axis;
      smooth.value = optionOf(SMOOTHS, query.smooth);
      tolerance.value = optionOf(TOLERANCES, query.tolerance);
      log.checked = query.isLog;
      for (const option of axis.options) {
        const needs = option.value === "time" ? "seconds" : option.value === "tokens" ? "tokens" : null;
        option.disabled = needs !== null && option.value !== query.axis && runs.every((run) => !run[needs]);
      }
    },
  };
}

/** @param {Record<string, string>} options value -> text @param {(value: string) => void} chosen */
function select(options, chosen) {
  const element = el("select", { change: () => chosen(element.value) }, ...Object.entries(options).map(([value, text]) => el("option", { value }, text)));
  return element;
}

/** @type {import("../../types.js").Page} */
export default { id: "compare", title: "Compare runs", path: "/compare", under: "runs", help: "Several runs beside each other", mount };
