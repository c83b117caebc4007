// The table of runs: a row a run, kept while it stays; some columns' names sort the list, by way of the address.

import { el, link } from "../dom.js";
import { age, clip, count, duration, scale } from "../format.js";
import { heatOf } from "../headroom.js";
import { keepRows } from "../keep_rows.js";
import { nextSort, runsPath, sortedBy } from "../run_query.js";
import { runPath } from "../url_state.js";
import { severityGlyph } from "./alert_glyph.js";
import { headroomText } from "./cards.js";
import { sparkline } from "./sparkline.js";
import { stateBadge } from "./state_badge.js";

/** @typedef {import("../types.js").RunSummary} RunSummary */
/** @typedef {import("../run_query.js").RunQuery} RunQuery */

/** Of a run's name: more would make its row many lines high. */
const MOST_LETTERS = 120;
const MOST_REASON = 80;

/** The gravest first. */
const SEVERITIES = ["critical", "warning", "info"];

const COLUMNS = ["Run", "State", "Ranks", "Last step", "Headroom", "Least headroom", "Loss scale", "Skipped", "Alerts", "Age"];

/** @param {(path: string) => void} navigate */
export function createRunsTable(navigate) {
  /** @type {RunQuery | null} */
  let query = null;
  const heads = COLUMNS.map((name) => el("th", { scope: "col" }, nextSort(name, "") === null ? name : el("button", { type: "button", class: "sort", click: () => sortBy(name) }, name)));
  const body = el("tbody");
  const table = el("table", { class: "runs-table", "data-testid": "runs-table" }, el("thead", {}, el("tr", {}, ...heads)), body);

  /** @param {string} name of a column */
  function sortBy(name) {
    if (query) navigate(runsPath({ ...query, before: "", offset: "", sort: nextSort(name, query.sort) ?? "" }));
  }

  /** Cell by cell, so that what is pressed or marked stays while the rest of its row goes on. @param {RunSummary} run @param {number} nowNs */
  function rowOf(run, nowNs) {
    const row = el("tr", { "data-testid": "run-row", "data-run": run.id, "data-key": run.id }, ...cellsOf(run, nowNs));
    const old = [...body.children].find((one) => one.getAttribute("data-key") === String(run.id));
    if (old) keepRows(old, [...row.children]);
    return old ?? row;
  }

  return {
    element: el("div", { class: "panel table-scroll" }, table),
    /** @param {RunSummary[]} runs @param {number} nowNs @param {RunQuery} asked */
    update(runs, nowNs, asked) {
      query = asked;
      for (const [i, name] of COLUMNS.entries()) {
        const way = sortedBy(name, asked.sort);
        if (way) heads[i].setAttribute("aria-sort", way);
        else heads[i].removeAttribute("aria-sort");
      }
      keepRows(body, runs.map((run) => rowOf(run, nowNs)));
    },
  };
}

/** @param {RunSummary} run @param {number} nowNs */
function cellsOf(run, nowNs) {
  const cells = [
    runName(run),
    stateOf(run, nowNs),
    `${run.ranks_reporting} of ${run.world_size}`,
    run.last_step === null ? "none yet" : count(run.last_step),
    sparkline(run.sparkline),
    leastHeadroom(run),
    scale(run.loss_scale),
    run.skipped_steps === null ? "none" : count(run.skipped_steps),
    alertsOf(run),
    duration(nowNs - run.started_ns),
  ];
  return cells.map((cell, i) => el("td", { "data-label": COLUMNS[i], "data-key": i }, cell));
}

/** Its title, or else its name, with its tags. @param {RunSummary} run */
function runName({ id, name, title, tags, archived }) {
  const chips = tags.map((tag) => link(runsPath({ q: tag }), { class: "tag", title: `Runs with ${clip(tag, MOST_LETTERS)}` }, tag));
  const away = archived ? [el("span", { class: "tag" }, "archived")] : [];
  return el("span", {}, link(runPath(id, ""), { class: "run-name", title: name }, clip(title || name, MOST_LETTERS)), ...away, ...chips);
}

/** With when it was last heard of, and why it ended if that was no good end. @param {RunSummary} run @param {number} nowNs */
function stateOf(run, nowNs) {
  const why = run.reason ? el("div", {}, el("span", { class: "least-label muted", title: run.reason }, clip(run.reason, MOST_REASON))) : null;
  return el("div", {}, stateBadge(run.state), el("span", { class: "muted" }, seenText(run, nowNs)), why);
}

/** How long ago a run that does not report now was heard of. Pure. @param {Pick<RunSummary, "state" | "last_seen_ns">} run @param {number} nowNs */
export const seenText = ({ state, last_seen_ns: seen }, nowNs) => (state === "live" ? "" : ` seen ${age(nowNs - seen)}`);

/** How many alerts of each severity stand. @param {RunSummary} run */
function alertsOf({ id, alerts = {} }) {
  const standing = SEVERITIES.filter((severity) => alerts[severity]);
  if (!standing.length) return el("span", { class: "muted" }, "none");
  const marks = standing.flatMap((severity) => [severityGlyph(severity, "open"), ` ${count(alerts[severity])} `, el("span", { class: "visually-hidden" }, `${severity} `)]);
  const said = standing.map((severity) => `${count(alerts[severity])} ${severity}`).join(", ");
  return link(runPath(id, "alerts"), { class: "alert-count", title: said }, el("span", { class: "visually-hidden" }, "Alerts: "), ...marks);
}

/** @param {RunSummary} run */
function leastHeadroom(run) {
  const least = run.least_headroom;
  if (!least) return el("span", { class: "muted" }, "none yet");
  const value = el("span", { class: "heat", "data-heat": least.bits === null ? "bad" : heatOf(least.bits) }, headroomText(least));
  return el("span", {}, value, " ", el("span", { class: "least-label muted" }, least.label));
}
