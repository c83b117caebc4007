// Runs: every run at a glance, searched, sorted, newest first.

import * as api from "../api.js";
import { severityGlyph } from "../components/alert_glyph.js";
import { headroomText } from "../components/cards.js";
import { noRuns } from "../components/empty_state.js";
import { createRunFilters } from "../components/run_filters.js";
import { errorState, mayHeal } from "../components/error_state.js";
import { sparkline } from "../components/sparkline.js";
import { stateBadge } from "../components/state_badge.js";
import { el, link, replace } from "../dom.js";
import { age, clip, count, duration, plural, scale } from "../format.js";
import { heatOf } from "../headroom.js";
import { createRefresher } from "../refresher.js";
import { asked, pages, parseRunQuery, runsPath } from "../run_query.js";
import { runPath } from "../url_state.js";

/** @typedef {import("../types.js").RunSummary} RunSummary */

/** Of a run's name: more would make its row many lines high. */
const MOST_LETTERS = 120;

/** The gravest first. */
const SEVERITIES = ["critical", "warning", "info"];

const COLUMNS = ["Run", "State", "Ranks", "Last step", "Headroom", "Least headroom", "Loss scale", "Skipped", "Alerts", "Age"];

/** @param {HTMLElement} root @param {import("../types.js").PageContext} ctx */
function mount(root, ctx) {
  const refresher = createRefresher(load, failed);
  const filters = createRunFilters(ctx);
  const place = el("div");
  const found = el("span", { class: "facts", role: "status" });
  const page = el("div", {}, el("header", { class: "run-header" }, el("h1", {}, "Runs"), found), filters.element, place);

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const query = parseRunQuery(location.search);
    const list = await api.runs(asked(query), signal);
    const isNothing = !list.runs.length && !(await api.runs({ limit: 1 }, signal)).total;
    if (isNothing) return replace(root, noRuns(list.address));
    if (page.parentElement !== root) replace(root, page);
    filters.update(query);
    found.textContent = plural(list.total, "run");
    if (place.querySelector(":focus, :active") && sameRuns(place, list.runs)) return refreshRows(place, list.runs, list.now_ns);
    replace(place, ...(list.runs.length ? [runsTable(list.runs, list.now_ns), pager(pages(query, list))] : [noMatch(query)]));
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
  return () => {
    filters.stop();
    refresher.stop();
  };
}

/** Links to the first page and to the next; nothing when all are here. @param {{first: string | null, more: string | null}} ways */
function pager({ first, more }) {
  const back = first ? [link(first, {}, "First page")] : [];
  const next = more ? [link(more, { "data-testid": "older-runs" }, "More runs")] : [];
  return el("nav", { class: "pager", "aria-label": "Pages of runs" }, ...back, ...next);
}

/** @param {import("../run_query.js").RunQuery} query */
function noMatch({ q, archived }) {
  const what = archived === "only" ? "No archived run" : archived === "all" ? "No run" : "No run that is not archived";
  const words = q ? `${what} has ${JSON.stringify(clip(q, MOST_LETTERS))} in its name, title or tags.` : `${what} is here.`;
  return el("section", { class: "panel state-panel", "data-testid": "empty-state" }, el("p", {}, words), el("p", {}, link("/?archived=all", {}, "Show all runs")));
}

/** @param {RunSummary[]} runs @param {number} nowNs */
function runsTable(runs, nowNs) {
  const head = el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)));
  const body = el("tbody", {}, ...runs.map((run) => runRow(run, nowNs)));
  const table = el("table", { class: "runs-table", "data-testid": "runs-table" }, el("thead", {}, head), body);
  return el("div", { class: "panel table-scroll" }, table);
}

/** @param {RunSummary} run @param {number} nowNs */
function runRow(run, nowNs) {
  const cells = [
    runName(run),
    el("span", {}, stateBadge(run.state), el("span", { class: "muted" }, sinceSeen(run, nowNs))),
    `${run.ranks_reporting} of ${run.world_size}`,
    run.last_step === null ? "none yet" : count(run.last_step),
    sparkline(run.sparkline),
    leastHeadroom(run),
    scale(run.loss_scale),
    run.skipped_steps === null ? "none" : count(run.skipped_steps),
    alertsOf(run),
    duration(nowNs - run.started_ns),
  ];
  return el("tr", { "data-testid": "run-row", "data-run": run.id }, ...cells.map((cell, i) => el("td", { "data-label": COLUMNS[i] }, cell)));
}

/** Its title, or else its name, with its tags. @param {RunSummary} run */
function runName({ id, name, title, tags, archived }) {
  const chips = tags.map((tag) => link(runsPath({ q: tag }), { class: "tag", title: `Runs with ${clip(tag, MOST_LETTERS)}` }, tag));
  const away = archived ? [el("span", { class: "tag" }, "archived")] : [];
  return el("span", {}, link(runPath(id, ""), { class: "run-name", title: name }, clip(title || name, MOST_LETTERS)), ...away, ...chips);
}

/** How many alerts of each severity stand. @param {RunSummary} run */
function alertsOf({ id, alerts = {} }) {
  const standing = SEVERITIES.filter((severity) => alerts[severity]);
  if (!standing.length) return el("span", { class: "muted" }, "none");
  const marks = standing.flatMap((severity) => [severityGlyph(severity, "open"), ` ${count(alerts[severity])} `, el("span", { class: "visually-hidden" }, `${severity} `)]);
  const said = standing.map((severity) => `${count(alerts[severity])} ${severity}`).join(", ");
  return link(runPath(id, "alerts"), { class: "alert-count", title: said }, el("span", { class: "visually-hidden" }, "Alerts: "), ...marks);
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
