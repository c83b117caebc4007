// The table of runs: a row a run, reused while it stays; columns' names sort the list, by way of the address, and ticks say
// which are compared.

import { MOST_COMPARED, nextSort, parseRunQuery, runsPath, sortedBy } from "../../api/run_query.js";
import { runPath } from "../../api/url_state.js";
import { severityGlyph } from "../../charts/alerts/alert_marks.js";
import { heatOf } from "../../charts/statistics.js";
import { el, link } from "../../format/dom.js";
import { age, clip, count, duration, reading, scale } from "../../format/numbers.js";
import { reuseRows } from "../../format/reuse_rows.js";
import { headroomText, isFar } from "../../widgets/detail_cards.js";
import { stateBadge } from "../../widgets/states/state_badge.js";
import { sparkline } from "./sparkline.js";

/** @typedef {import("../../types.js").RunSummary} RunSummary */
/** @typedef {import("../../api/run_query.js").RunQuery} RunQuery */

/** Of a run's name or a reason: a row is one line. */
const MOST_LETTERS = 160;
/** The end of a name that stays, whatever gives way: sweeps differ there. */
const TAIL = 10;
/** Tags shown of a run. */
const MOST_TAGS = 1;

/** The gravest first. */
const SEVERITIES = ["critical", "warning", "info"];

const COLUMNS = ["", "Run", "State", "Verdict", "Loss", "Step", "Ranks", "Headroom", "Skipped", "Scale", "Seen", "Age"];
const NUMBERS = new Set(["Loss", "Step", "Ranks", "Headroom", "Skipped", "Scale", "Seen", "Age"]);

/** @param {(path: string) => void} navigate */
export function createRunsTable(navigate) {
  const heads = COLUMNS.map(head);
  const body = el("tbody");
  const table = el("table", { class: "runs-table", "data-testid": "runs-table" }, el("thead", {}, el("tr", {}, ...heads)), body);

  /** @param {string} name of a column */
  function head(name) {
    const text = name || el("span", { class: "visually-hidden" }, "Compare");
    const sortable = nextSort(name, "") !== null;
    return el("th", { scope: "col", "data-column": name || "Tick" }, sortable ? el("button", { type: "button", class: "sort", click: () => go((query) => ({ sort: nextSort(name, query.sort) ?? "" })) }, name) : text);
  }

  /** To the first page of the list, changed so. @param {(query: RunQuery) => Partial<RunQuery>} patch */
  function go(patch) {
    const query = parseRunQuery(location.search);
    navigate(runsPath({ ...query, before: "", offset: "", ...patch(query) }));
  }

  /** @param {number} id */
  const tick = (id) => {
    const query = parseRunQuery(location.search);
    navigate(runsPath({ ...query, picked: ticked(query.picked, id) }));
  };

  /** Cell by cell, so that what is pressed or marked stays while the rest of its row goes on. @param {RunSummary} run @param {number} nowNs @param {readonly number[]} picked */
  function rowOf(run, nowNs, picked) {
    const row = el("tr", { "data-testid": "run-row", "data-run": run.id, "data-key": run.id }, ...cellsOf(run, nowNs, picked, tick));
    const old = [...body.children].find((one) => one.getAttribute("data-key") === String(run.id));
    if (old) reuseRows(old, [...row.children]);
    return old ?? row;
  }

  return {
    element: el("div", { class: "panel table-scroll" }, table),
    /** @param {RunSummary[]} runs @param {number} nowNs @param {RunQuery} query */
    update(runs, nowNs, { sort, picked }) {
      for (const [i, name] of COLUMNS.entries()) {
        const way = sortedBy(name, sort);
        if (way) heads[i].setAttribute("aria-sort", way);
        else heads[i].removeAttribute("aria-sort");
      }
      reuseRows(body, runs.map((run) => rowOf(run, nowNs, picked)));
    },
  };
}

/** With the run, or without it if it was among them. Pure. @param {readonly number[]} picked @param {number} id */
export const ticked = (picked, id) => (picked.includes(id) ? picked.filter((one) => one !== id) : [...picked, id].slice(0, MOST_COMPARED));

/** @param {RunSummary} run @param {number} nowNs @param {readonly number[]} picked @param {(id: number) => void} tick */
function cellsOf(run, nowNs, picked, tick) {
  const cells = [
    tickOf(run, picked, tick),
    runName(run),
    el("span", { title: run.reason ?? "" }, stateBadge(run.state)),
    verdictOf(run),
    lossOf(run),
    run.last_step === null ? muted("none") : count(run.last_step),
    run.ranks_reporting === run.world_size ? count(run.world_size) : el("span", { title: "ranks that report, of all" }, `${count(run.ranks_reporting)} of ${count(run.world_size)}`),
    leastHeadroom(run),
    run.skipped_steps ? count(run.skipped_steps) : muted("0"),
    scale(run.loss_scale),
    lastSeenText(run, nowNs) || muted("now"),
    duration(nowNs - run.started_ns),
  ];
  return cells.map((cell, i) => el("td", { "data-column": COLUMNS[i] || "Tick", "data-key": i, class: NUMBERS.has(COLUMNS[i]) ? "number" : null }, cell));
}

/** @param {string} text */
const muted = (text) => el("span", { class: "muted" }, text);

/** @param {RunSummary} run @param {readonly number[]} picked @param {(id: number) => void} tick */
function tickOf({ id, name, title }, picked, tick) {
  const isIn = picked.includes(id);
  const isFull = picked.length >= MOST_COMPARED && !isIn;
  return el("input", { type: "checkbox", "aria-label": `Compare ${clip(title || name, 80)}`, checked: isIn, disabled: isFull, title: isFull ? `${MOST_COMPARED} runs are compared at most` : null, change: () => tick(id) });
}

/** Its title, or else its name, with its tags. @param {RunSummary} run */
function runName({ id, name, title, tags, archived }) {
  const chips = tags.slice(0, MOST_TAGS).map((tag) => link(runsPath({ q: tag }), { class: "tag", title: `Runs with ${clip(tag, MOST_LETTERS)}` }, tag));
  const more = tags.length > MOST_TAGS ? [el("span", { class: "tag", title: clip(tags.slice(MOST_TAGS).join(", ")) }, `+${tags.length - MOST_TAGS}`)] : [];
  const away = archived ? [el("span", { class: "tag" }, "archived")] : [];
  const [head, tail] = halves(clip(title || name, MOST_LETTERS));
  return el("span", { class: "run-cell" }, link(runPath(id, ""), { class: "run-name", title: clip(name, 400) }, el("span", { class: "elide-head" }, head), tail && el("span", { class: "elide-tail" }, tail)), ...away, ...chips, ...more);
}

/** A name as the part that gives way and the end that stays: cut in the middle it is still told from its neighbours. Pure. @param {string} name @returns {[string, string]} */
export function halves(name) {
  const letters = Array.from(name);
  if (letters.length <= 2 * TAIL) return [name, ""];
  return [letters.slice(0, -TAIL).join(""), letters.slice(-TAIL).join("")];
}

/** How long ago a run that does not report now was heard of. Pure. @param {Pick<RunSummary, "state" | "last_seen_ns">} run @param {number} nowNs */
export const lastSeenText = ({ state, last_seen_ns: seen }, nowNs) => (state === "live" || state === "hung" ? "" : age(nowNs - seen));

/** The gravest open finding, or why the run ended, with how many alerts of each severity are open. @param {RunSummary} run */
function verdictOf({ id, alerts = {}, headline, reason, state }) {
  const open = SEVERITIES.filter((severity) => alerts[severity]);
  const marks = open.flatMap((severity) => [severityGlyph(severity, "open"), ` ${count(alerts[severity])} `, el("span", { class: "visually-hidden" }, `${severity} `)]);
  const counts = open.map((severity) => `${count(alerts[severity])} ${severity}`).join(", ");
  const alarm = open.length ? [link(runPath(id, "alerts"), { class: "alert-count", title: counts }, el("span", { class: "visually-hidden" }, "Alerts: "), ...marks)] : [];
  const name = headline?.label ? [el("span", { class: "run-verdict", "data-level": headline.level }, headline.label)] : [];
  const why = reason ?? (headline?.label ? (headline.summary ?? "") : "");
  const calm = !open.length && !why ? [muted(state === "empty" ? "no step yet" : "no open alert")] : [];
  return el("span", { class: "verdict-cell", title: clip([headline?.label, why].filter(Boolean).join(" "), 400) }, ...alarm, ...name, why && ` ${clip(why, MOST_LETTERS)}`, ...calm);
}

/** The newest value, and the way it took. @param {RunSummary} run */
function lossOf({ loss }) {
  if (!loss) return muted("not logged");
  const known = /** @type {number[]} */ (loss.values.filter((value) => value !== null));
  const label = known.length ? `loss from ${reading(known[0])} to ${reading(known.at(-1))}` : "no finite loss";
  const last = loss.last !== null ? reading(loss.last) : loss.step === null ? muted("none recently") : el("span", { class: "heat", "data-heat": "bad" }, "NaN or Inf");
  return el("span", { class: "loss-cell" }, sparkline(loss.values, loss.bad, loss.bad.length ? `${label}, NaN or Inf seen` : label), el("span", { class: "loss-last" }, last));
}

/** @param {RunSummary} run */
function leastHeadroom({ least_headroom: least }) {
  if (!least) return muted("none");
  if (isFar(least)) return muted(headroomText(least));
  return el("span", { class: "heat", "data-heat": least.bits === null ? "bad" : heatOf(least.bits), title: `${clip(least.label)}, step ${count(least.step)}, rank ${least.rank}` }, headroomText(least));
}
