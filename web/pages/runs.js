// Runs: every run at a glance, searched, sorted, newest first.

import * as api from "../api.js";
import { noRuns } from "../components/empty_state.js";
import { createRunFilters } from "../components/run_filters.js";
import { errorState, mayHeal } from "../components/error_state.js";
import { createRunsTable } from "../components/runs_table.js";
import { el, link, replace } from "../dom.js";
import { clip, plural } from "../format.js";
import { createRefresher } from "../refresher.js";
import { asked, pages, parseRunQuery } from "../run_query.js";
import { renew } from "../renew.js";

/** Of what was searched for. */
const MOST_LETTERS = 120;

/** @param {HTMLElement} root @param {import("../types.js").PageContext} ctx */
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
    renew(below, list.runs.length ? pager(pages(query, list)) : noMatch(query));
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

/** @param {import("../run_query.js").RunQuery} query */
function noMatch({ q, archived }) {
  const what = archived === "only" ? "No archived run" : archived === "all" ? "No run" : "No run that is not archived";
  const words = q ? `${what} has ${JSON.stringify(clip(q, MOST_LETTERS))} in its name, title or tags.` : `${what} is here.`;
  return el("section", { class: "panel state-panel", "data-testid": "empty-state" }, el("p", {}, words), el("p", {}, link("/?archived=all", {}, "Show all runs")));
}

/** @type {import("../types.js").Page} */
export default { id: "runs", title: "Runs", path: "/", mount };
