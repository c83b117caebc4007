// Runs: every run at a glance, newest news first.

import * as api from "../api.js";
import { headroomText } from "../components/cards.js";
import { noRuns } from "../components/empty_state.js";
import { errorState, mayHeal } from "../components/error_state.js";
import { sparkline } from "../components/sparkline.js";
import { stateBadge } from "../components/state_badge.js";
import { el, link, replace } from "../dom.js";
import { age, clip, count, duration, scale } from "../format.js";
import { heatOf } from "../headroom.js";
import { createRefresher } from "../refresher.js";
import { runPath } from "../url_state.js";

/** @typedef {import("../types.js").RunSummary} RunSummary */

/** Of a run's name: more would make its row many lines high. */
const MOST_LETTERS = 120;

const COLUMNS = ["Run", "State", "Ranks", "Last step", "Headroom", "Least headroom", "Loss scale", "Skipped", "Age"];

/** @param {HTMLElement} root @param {import("../types.js").PageContext} ctx */
function mount(root, ctx) {
  const refresher = createRefresher(load, failed);

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const before = new URLSearchParams(location.search).get("before") ?? "";
    const { runs, address, now_ns, next } = await api.runs(before ? { before } : {}, signal);
    if (root.querySelector(":focus, :active") && sameRuns(root, runs)) return refreshRows(root, runs, now_ns);
    replace(root, runs.length || before ? runsPanel(runs, now_ns, pager(before, next)) : noRuns(address));
  }

  /** @param {unknown} error */
  function failed(error) {
    const heals = mayHeal(error);
    // The last table is worth more than an apology; the connection's note says that it is old.
    if (!heals || !root.querySelector("table")) replace(root, errorState(error, ctx));
    return heals;
  }

  ctx.onChange(null, refresher.soon);
  ctx.onState(refresher.now);
  refresher.now();
  return refresher.stop;
}

/** Links to the newest runs and to older ones; nothing when all are here. @param {string} before @param {number | null} next */
function pager(before, next) {
  const newest = before ? [link("/", {}, "Newest runs")] : [];
  const older = next === null ? [] : [link(`/?before=${next}`, { "data-testid": "older-runs" }, "Older runs")];
  return el("nav", { class: "pager", "aria-label": "Pages of runs" }, ...newest, ...older);
}

/** @param {RunSummary[]} runs @param {number} nowNs @param {HTMLElement} pages */
function runsPanel(runs, nowNs, pages) {
  const head = el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)));
  const body = el("tbody", {}, ...runs.map((run) => runRow(run, nowNs)));
  const table = el("table", { class: "runs-table", "data-testid": "runs-table" }, el("thead", {}, head), body);
  return el("div", {}, el("header", { class: "run-header" }, el("h1", {}, "Runs")), el("div", { class: "panel table-scroll" }, table), pages);
}

/** @param {RunSummary} run @param {number} nowNs */
function runRow(run, nowNs) {
  const cells = [
    link(runPath(run.id, ""), { class: "run-name", title: run.name }, clip(run.name, MOST_LETTERS)),
    el("span", {}, stateBadge(run.state), el("span", { class: "muted" }, sinceSeen(run, nowNs))),
    `${run.ranks_reporting} of ${run.world_size}`,
    run.last_step === null ? "none yet" : count(run.last_step),
    sparkline(run.sparkline),
    leastHeadroom(run),
    scale(run.loss_scale),
    run.skipped_steps === null ? "none" : count(run.skipped_steps),
    duration(nowNs - run.started_ns),
  ];
  return el("tr", { "data-testid": "run-row", "data-run": run.id }, ...cells.map((cell, i) => el("td", { "data-label": COLUMNS[i] }, cell)));
}

/** How long ago a run that no longer reports was heard of. @param {RunSummary} run @param {number} nowNs */
function sinceSeen({ state, last_seen_ns }, nowNs) {
  return state === "stale" || state === "finished" ? ` ${age(nowNs - last_seen_ns)}` : "";
}

/** @param {RunSummary} run */
function leastHeadroom(run) {
  const least = run.least_headroom;
  if (!least) return el("span", { class: "muted" }, "none yet");
  const value = el("span", { class: "heat", "data-heat": least.bits === null ? "bad" : heatOf(least.bits) }, headroomText(least));
  return el("span", {}, value, " ", el("span", { class: "least-label muted" }, least.label));
}

/** @param {HTMLElement} root @param {RunSummary[]} runs */
function sameRuns(root, runs) {
  const rows = [...root.querySelectorAll("tr[data-run]")].map((row) => row.getAttribute("data-run"));
  return rows.join() === runs.map(({ id }) => id).join();
}

/** New cells beside the name, whose link keeps the reader's focus. @param {HTMLElement} root @param {RunSummary[]} runs @param {number} nowNs */
function refreshRows(root, runs, nowNs) {
  for (const run of runs) {
    const row = root.querySelector(`tr[data-run="${run.id}"]`);
    const fresh = [...runRow(run, nowNs).children].slice(1);
    [...(row?.children ?? [])].slice(1).forEach((cell, i) => cell.replaceWith(fresh[i]));
  }
}

/** @type {import("../types.js").Page} */
export default { id: "runs", title: "Runs", path: "/", mount };
