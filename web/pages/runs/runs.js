// The Runs page: every run in a table, searched, sorted and filtered, with a sparkline of its least headroom.

import * as api from "../../api/client.js";
import { createRefresher } from "../../api/live.js";
import { SHOWN, SORTS, asked, nextSort, pages, parseRunQuery, runsPath, sortedBy } from "../../api/run_query.js";
import { runPath } from "../../api/url_state.js";
import { severityGlyph } from "../../charts/alerts/alert_marks.js";
import { SCALE_TOP, heatOf } from "../../charts/headroom.js";
import { el, link, replace, svg } from "../../format/dom.js";
import { age, bits, clip, count, duration, plural, scale } from "../../format/numbers.js";
import { reuseParts, reuseRows } from "../../format/reuse_rows.js";
import { headroomText } from "../../widgets/detail_cards.js";
import { noRuns } from "../../widgets/empty_state.js";
import { errorState, mayHeal } from "../../widgets/error_state.js";
import { stateBadge } from "../../widgets/state_badge.js";

/** Of what was searched for. */
const MOST_SEARCHED = 120;

/** @param {HTMLElement} root @param {import("../../types.js").PageContext} ctx */
function mount(root, ctx) {
  const refresher = createRefresher(load, failed);
  const filters = createRunFilters(ctx);
  const table = createRunsTable(ctx.navigate);
  const below = el("div");
  const found = el("span", { class: "facts", role: "status" });
  const page = el("div", {}, el("header", { class: "run-header" }, el("h1", {}, "Runs"), found), filters.element, table.element, below);

  /** @type {HTMLElement | null} */
  let none = null;

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const query = parseRunQuery(location.search);
    const list = await api.runs(asked(query), signal);
    const isNothing = !list.runs.length && !(await api.runs({ limit: 1 }, signal)).total;
    if (isNothing) return showNone(list.address);
    if (page.parentElement !== root) replace(root, page);
    filters.update(query);
    found.textContent = plural(list.total, "run");
    table.element.hidden = !list.runs.length;
    table.update(list.runs, list.now_ns, query);
    reuseParts(below, list.runs.length ? pager(pages(query, list)) : noMatch(query));
  }

  /** Once: another load must not take away what is being copied. @param {string} address */
  function showNone(address) {
    if (none?.parentElement === root) return;
    none = noRuns(address);
    replace(root, none);
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

/** @param {import("../../api/run_query.js").RunQuery} query */
function noMatch({ q, archived }) {
  const what = archived === "only" ? "No archived run" : archived === "all" ? "No run" : "No run that is not archived";
  const words = q ? `${what} has ${JSON.stringify(clip(q, MOST_SEARCHED))} in its name, title or tags.` : `${what} is here.`;
  return el("section", { class: "panel state-panel", "data-testid": "empty-state" }, el("p", {}, words), el("p", {}, link("/?archived=all", {}, "Show all runs")));
}

/** @type {import("../../types.js").Page} */
export default { id: "runs", title: "Runs", path: "/", mount };

// What the list of runs is narrowed by. Each choice writes the address and nothing else.

/** Typing rests this long before it is searched for. Milliseconds. */
const REST_MS = 250;

/** @param {import("../../types.js").PageContext} ctx */
function createRunFilters(ctx) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let rest;
  const search = el("input", { type: "search", maxlength: 200, placeholder: "name, title or tag", input: typed });
  const sort = select(SORTS, (value) => go({ sort: value === "newest" ? "" : value }));
  const archived = select(SHOWN, (value) => go({ archived: value }));
  const field = (/** @type {string} */ name, /** @type {HTMLElement} */ control) => el("label", { class: "field" }, `${name} `, control);
  const element = el("form", { class: "filters", role: "search", submit: (/** @type {Event} */ event) => event.preventDefault() }, field("Search", search), field("Order", sort), field("Show", archived));

  /** @param {Partial<import("../../api/run_query.js").RunQuery>} patch */
  function go(patch) {
    ctx.navigate(runsPath({ ...parseRunQuery(location.search), before: "", offset: "", ...patch }));
  }

  function typed() {
    clearTimeout(rest);
    rest = setTimeout(() => go({ q: search.value.trim() }), REST_MS);
  }

  return {
    element,
    /** As the address has it. @param {import("../../api/run_query.js").RunQuery} query */
    update(query) {
      if (document.activeElement !== search) search.value = query.q;
      sort.value = query.sort || "newest";
      archived.value = query.archived;
    },
    stop: () => clearTimeout(rest),
  };
}

/** @param {Record<string, string>} options value -> words @param {(value: string) => void} chosen */
function select(options, chosen) {
  const element = el("select", { change: () => chosen(element.value) }, ...Object.entries(options).map(([value, words]) => el("option", { value }, words)));
  return element;
}

// The table of runs: a row a run, kept while it stays; some columns' names sort the list, by way of the address.

/** @typedef {import("../../types.js").RunSummary} RunSummary */
/** @typedef {import("../../api/run_query.js").RunQuery} RunQuery */

/** Of a run's name: more would make its row many lines high. */
const MOST_LETTERS = 120;
const MOST_REASON = 80;

/** The gravest first. */
const SEVERITIES = ["critical", "warning", "info"];

const COLUMNS = ["Run", "State", "Ranks", "Last step", "Headroom", "Least headroom", "Loss scale", "Skipped", "Alerts", "Age"];

/** @param {(path: string) => void} navigate */
function createRunsTable(navigate) {
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
    if (old) reuseRows(old, [...row.children]);
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
      reuseRows(body, runs.map((run) => rowOf(run, nowNs)));
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

// A run's least headroom over time, in a table cell.

const WIDTH = 120;
const HEIGHT = 22;
const PAD = 2;

/** @param {(number | null)[]} values bits; -1 is NaN or Inf @returns {Element} */
function sparkline(values) {
  if (!values.length) return el("span", { class: "muted" }, "none yet");
  const x = (/** @type {number} */ i) => PAD + (i * (WIDTH - 2 * PAD)) / Math.max(1, values.length - 1);
  const marks = values.flatMap((value, i) => (value === -1 ? overflowMark(x(i)) : []));
  return svg(
    "svg",
    { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": summary(values) },
    svg("line", { class: "spark-floor", x1: PAD, x2: WIDTH - PAD, y1: HEIGHT - PAD, y2: HEIGHT - PAD }),
    svg("path", { class: "spark-line", d: path(values, x) }),
    ...marks,
  );
}

/** @param {(number | null)[]} values @param {(i: number) => number} x */
function path(values, x) {
  let pen = "M";
  return values
    .map((value, i) => {
      if (value === null || value < 0) {
        pen = "M";
        return "";
      }
      const y = HEIGHT - PAD - (Math.min(value, SCALE_TOP) / SCALE_TOP) * (HEIGHT - 2 * PAD);
      const piece = `${pen}${x(i).toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
      return piece;
    })
    .join("");
}

/** A full-height bar with a foot: a shape, not only a colour. @param {number} x */
function overflowMark(x) {
  return svg("path", { class: "spark-bad", d: `M${x.toFixed(1)} ${HEIGHT}V0M${(x - 2).toFixed(1)} 1h4` });
}

/** @param {(number | null)[]} values */
function summary(values) {
  const known = values.filter((value) => value !== null && value >= 0);
  const overflow = values.includes(-1) ? ", NaN or Inf seen" : "";
  return known.length ? `least headroom over time, lowest ${bits(Math.min(.../** @type {number[]} */ (known)))}${overflow}` : `no finite headroom${overflow}`;
}
