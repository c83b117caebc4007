// The Runs page: every run in a table, searched, sorted and filtered, with its verdict and its loss; some of them are
// ticked to be compared.

import * as api from "../../api/client.js";
import { createRefresher } from "../../api/live.js";
import { STATES, asked, pages, parseRunQuery } from "../../api/run_query.js";
import { el, link, replace } from "../../format/dom.js";
import { clip, count, plural } from "../../format/numbers.js";
import { reuseParts } from "../../format/reuse_rows.js";
import { noRuns } from "../../widgets/states/empty_state.js";
import { errorState, mayHeal } from "../../widgets/states/error_state.js";
import { skeleton } from "../../widgets/states/skeleton.js";
import { createCompareBar, createRunFilters } from "./run_filters.js";
import { createRunsTable } from "./runs_table.js";

/** Of what was searched for. */
const MOST_SEARCHED = 120;

/** @param {HTMLElement} root @param {import("../../types.js").PageContext} ctx */
function mount(root, ctx) {
  const refresher = createRefresher(load, failed);
  const filters = createRunFilters(ctx);
  const bar = createCompareBar();
  const table = createRunsTable(ctx.navigate);
  const below = el("div");
  const total = el("span", { class: "run-details", role: "status" });
  replace(root, skeleton());
  const page = el("div", {}, el("header", { class: "run-header" }, el("h1", {}, "Runs"), total, bar.element), filters.element, table.element, below);

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
    bar.update(query);
    total.textContent = totalText(list);
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
    // The last table is worth more than an apology; the connection's note shows that it is old.
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

/** Of very many runs only the newest are put into an order that each must be read for. @param {import("../../types.js").RunList} list */
const totalText = ({ total, of_newest: most }) => plural(total, "run") + (most ? ` of the newest ${count(most)}` : "");

/** Links to the first page and to the next; nothing when all are here. @param {{first: string | null, more: string | null}} ways */
function pager({ first, more }) {
  const back = first ? [link(first, {}, "First page")] : [];
  const next = more ? [link(more, { "data-testid": "older-runs" }, "More runs")] : [];
  return el("nav", { class: "pager", "aria-label": "Pages of runs" }, ...back, ...next);
}

/** @param {import("../../api/run_query.js").RunQuery} query */
function noMatch({ q, archived, state }) {
  const what = archived === "only" ? "No archived run" : archived === "all" ? "No run" : "No run that is not archived";
  const where = state ? `${what} in this state (${STATES[state].text})` : what;
  const text = q ? `${where} has ${JSON.stringify(clip(q, MOST_SEARCHED))} in its name, title or tags.` : `${where} is here.`;
  return el("section", { class: "panel state-panel", "data-testid": "empty-state" }, el("p", {}, text), el("p", {}, link("/?archived=all", {}, "Show all runs")));
}

/** @type {import("../../types.js").Page} */
export default { id: "runs", title: "Runs", path: "/", key: "r", help: "All runs, newest first", mount };
