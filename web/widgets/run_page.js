// The frame of every page of a run: fetches the run and keeps it fresh, shows its header, notes on its ranks, and the
// report dialog.

import * as api from "../api/client.js";
import { clockFrom, createRefresher, deferUntil } from "../api/live.js";
import { formatState, runPath } from "../api/url_state.js";
import { DRAWN, el, link, replace } from "../format/dom.js";
import { age, clip, count, duration, plural, rankList } from "../format/numbers.js";
import { createRunReport } from "./run_report.js";
import { waitingRun } from "./states/empty_state.js";
import { errorState, mayHeal } from "./states/error_state.js";
import { skeleton } from "./states/skeleton.js";
import { stateBadge } from "./states/state_badge.js";

/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {import("../types.js").Run} Run */
/** @typedef {import("../types.js").ViewState} ViewState */
/**
 * @typedef {object} RunView
 * @property {HTMLElement} element
 * @property {(run: Run, signal: AbortSignal) => Promise<void>} update fetch and show, for the state in the URL
 * @property {() => void} destroy
 */

/**
 * @typedef {object} RunPageOptions
 * @property {string} [path] other than `/runs/{id}/` and the page's id
 * @property {boolean} [needsStep] false: built at once, and not only when the run has a step
 * @property {boolean} [showsHang] false: its header does not show that the run hangs
 * @property {boolean} [hasVerdict] true: it shows the verdict of the run
 * @property {(ctx: PageContext, refetch: () => void) => RunView} build
 */
/** @typedef {Omit<import("../types.js").Page, "path" | "mount"> & RunPageOptions} RunPageEntry */

/** A page of a run, from its one entry. @param {RunPageEntry} entry @returns {import("../types.js").Page} */
export function runPage({ path, needsStep = true, showsHang = true, hasVerdict = false, build, ...page }) {
  return { ...page, path: path ?? `/runs/{id}/${page.id}`, mount: (root, ctx) => mountRunPage(root, ctx, page.title, (refetch) => build(ctx, refetch), { needsStep, showsHang, hasVerdict }) };
}

/**
 * @param {HTMLElement} root @param {PageContext} ctx @param {string} title
 * @param {(refetch: () => void) => RunView} build @param {{needsStep: boolean, showsHang: boolean, hasVerdict: boolean}} options
 * @returns {() => void} unmount
 */
function mountRunPage(root, ctx, title, build, { needsStep, showsHang, hasVerdict }) {
  const header = createRunHeader({ showsHang, hasVerdict });
  const body = el("div", { class: "run-body" });
  const shell = el("div", { class: "run-page" }, header.element, body);
  /** @type {RunView | null} */
  let view = null;
  /** To this page or along it, since the last load began. */
  let hasMoved = true;
  /** Once, all of it. */
  let isShown = false;
  const refresher = createRefresher(load, failed);
  const loading = skeleton();
  if (!ctx.knownRun()) replace(root, loading);

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const known = hasMoved ? ctx.knownRun() : null;
    hasMoved = false;
    if (!known) return show(await ask(signal), signal);
    // All that is shown depends on the answer about the run, and that of the page before is seldom old.
    header.update(known, ctx.clock());
    const shown = show(known, signal);
    const [run] = await Promise.all([deferUntil(shown).then(() => ask(signal)), shown]);
    if (!isSame(run, known)) refresher.soon();
  }

  /** @param {AbortSignal} signal */
  async function ask(signal) {
    signal.throwIfAborted();
    const run = await api.run(ctx.params.id, signal);
    signal.throwIfAborted();
    ctx.updateRun(run);
    header.update(run, ctx.clock());
    return run;
  }

  /** @param {Run} run @param {AbortSignal} signal */
  async function show(run, signal) {
    ctx.setTitle(`${clip(run.title || run.name)} · ${title}`);
    if (shell.parentNode !== root) replace(root, shell);
    if (needsStep && run.last_step === null) return waiting(run);
    if (!view) {
      view = build(refresher.now);
      replace(body, view.element, loading);
      whileLoading(body);
    }
    await view.update(run, signal);
    loading.remove();
    body.classList.remove("is-loading");
    isShown = true;
  }

  /** @param {Run} run */
  function waiting(run) {
    const notice = waitingRun(run);
    if (body.textContent !== notice.textContent) replace(body, notice);
  }

  /** @param {unknown} error */
  function failed(error) {
    const heals = mayHeal(error);
    if (heals && shell.parentNode === root && isShown) header.problem(`Not up to date: ${messageOf(error)} Trying again.`);
    else replace(root, errorState(error, ctx));
    return heals;
  }

  let shown = ctx.state;
  ctx.onState(() => {
    const before = shown;
    shown = ctx.state;
    if (isOnlyOrder(before, shown)) return;
    hasMoved = true;
    refresher.now();
  });
  ctx.onChange(ctx.params.id, refresher.soon);
  const clock = setInterval(header.tick, 1000);
  refresher.now();
  return () => {
    clearInterval(clock);
    refresher.stop();
    view?.destroy();
  };
}

/**
 * `is-loading` until there is a verdict or a first figure, which say so by an event. No :has() does that: with one on so large an
 * element the browser matches all of its 1,300 elements again at each change, 60 ms of a zoom's 100.
 * @param {HTMLElement} body
 */
function whileLoading(body) {
  body.classList.add("is-loading");
  body.addEventListener(DRAWN, () => body.classList.remove("is-loading"), { once: true });
}

/** Whether rows alone were put into another order, which needs nothing from the server: tables follow by themselves. @param {ViewState} before @param {ViewState} after */
const isOnlyOrder = (before, after) => formatState(before) !== formatState(after) && formatState({ ...before, orders: [] }) === formatState({ ...after, orders: [] });

const TIMES = new Set(["now_ns", "last_seen_ns"]);

/** Whether nothing of the run is other than it was, but the time. @param {Run} run @param {Run} known */
const isSame = (run, known) => withoutTimes(run) === withoutTimes(known);

/** @param {Run} run */
const withoutTimes = (run) => JSON.stringify(run, (name, value) => (TIMES.has(name) ? 0 : value));

/** @param {unknown} error */
const messageOf = (error) => (error instanceof Error ? error.message : String(error));

// Name, state and reach of a run, its report, and everything that is missing from what is shown.

/** Notes shown before the rest folds away. */
const MOST_NOTES = 3;
const MOST_LETTERS = 240;

/** @param {{showsHang: boolean, hasVerdict: boolean}} options whether it shows that the run hangs, as every page but Hang does, and the Overview until its verdict says so */
function createRunHeader({ showsHang, hasVerdict }) {
  const title = el("h1", {});
  const badge = el("span", {});
  const details = el("span", { class: "run-details" });
  const notes = el("div", { class: "notes", "data-testid": "run-notes" });
  const problem = el("p", { class: "problem", role: "status", hidden: true });
  const hang = el("p", { class: "hang-note", "data-testid": "hang-note", hidden: true });
  const report = createRunReport();
  const element = el("div", {}, el("header", { class: "run-header" }, title, badge, details, report.button), hang, problem, notes, report.dialog);
  /** @type {import("../types.js").Run | null} */
  let run = null;
  let nowNs = clockFrom();

  function tick() {
    if (!run) return;
    details.textContent = detailsOf(run, nowNs()).join(" · ");
    drawNotes(notes, rankNotes(run, nowNs()));
  }

  return {
    element,
    tick,
    /** @param {import("../types.js").Run} next @param {() => number} clock the server's */
    update(next, clock) {
      run = next;
      nowNs = clock;
      title.textContent = clip(next.title || next.name);
      title.title = next.name;
      replace(badge, stateBadge(next.state));
      report.update(next);
      problem.hidden = true;
      hang.hidden = !showsHang || !next.hang || (hasVerdict && next.verdict.findings?.[0]?.rule === "hang"); // said once
      replace(hang, "■ Hung. ", clip(next.hang ?? "", 400), " ", link(runPath(next.id, "hang"), {}, "Where each rank is"));
      tick();
    },
    /** @param {string} text */
    problem(text) {
      problem.textContent = text;
      problem.hidden = false;
    },
  };
}

/** @param {import("../types.js").Run} run @param {number} nowNs */
function detailsOf(run, nowNs) {
  const step = run.last_step === null ? "no step yet" : `step ${count(run.last_step)}`;
  const ranks = `${run.ranks_reporting} of ${run.world_size} ranks`;
  return [step, ranks, `last seen ${age(nowNs - run.last_seen_ns)}`, `started ${age(nowNs - run.started_ns)}`];
}

/** @param {HTMLElement} place @param {string[]} notes */
function drawNotes(place, notes) {
  if (place.dataset.shown === JSON.stringify(notes)) return; // an opened list stays open
  const open = place.querySelector("details")?.open ?? false;
  place.dataset.shown = JSON.stringify(notes);
  const item = (/** @type {string} */ text) => el("li", { title: text }, clip(text, MOST_LETTERS));
  const rest = notes.slice(MOST_NOTES);
  replace(
    place,
    notes.length > 0 && el("ul", {}, ...notes.slice(0, MOST_NOTES).map(item)),
    rest.length > 0 && el("details", { open }, el("summary", {}, `${rest.length} more`), el("ul", {}, ...rest.map(item))),
  );
}

// What a reader must know is missing: ranks, records, modules. Hidden is shown as hidden.

/** @typedef {import("../types.js").RankInfo} RankInfo */

/** @param {Pick<Run, "ranks" | "missing_ranks">} run @param {number} nowNs @returns {string[]} */
export function rankNotes(run, nowNs) {
  return [...missing(run.missing_ranks), ...failed(run.ranks), ...silent(run.ranks, nowNs), ...doubled(run.ranks), ...faults(run.ranks), ...dropped(run.ranks), ...lowered(run.ranks), ...slower(run.ranks), ...unobserved(run.ranks)];
}

/** @param {number[]} ranks */
function missing(ranks) {
  return ranks.length ? [`${rankList(ranks)} ${ranks.length === 1 ? "has" : "have"} not reported`] : [];
}

/** Ranks of which the same is said make one line. @param {readonly RankInfo[]} ranks @param {(rank: RankInfo) => string | string[]} textOf of one rank; "": nothing @param {(who: string, text: string, many: number) => string} line */
function together(ranks, textOf, line) {
  /** @type {Map<string, number[]>} */
  const byText = new Map();
  for (const rank of ranks) {
    for (const text of [textOf(rank)].flat().filter(Boolean)) byText.set(text, [...(byText.get(text) ?? []), rank.rank]);
  }
  return [...byText].map(([text, mine]) => line(rankList(mine), text, mine.length));
}

/** The first line of the training's error as it ended. @param {RankInfo[]} ranks */
const failed = (ranks) => together(ranks, ({ failure }) => (failure ? firstLine(String(failure)) : ""), (who, text) => `${who} failed: ${text}`);

/** @param {string} text */
const firstLine = (text) => text.trim().split("\n", 1)[0];

/** Those that ended at one step in one line, with the times of the first and the last to fall silent. @param {RankInfo[]} ranks @param {number} nowNs */
function silent(ranks, nowNs) {
  const mine = ranks.filter((rank) => rank.state === "stale");
  const steps = [...new Set(mine.map((rank) => rank.last_step))];
  return steps.map((step) => {
    const of = mine.filter((rank) => rank.last_step === step);
    const ages = of.map((rank) => nowNs - rank.last_seen_ns);
    const [least, most] = [duration(Math.min(...ages)), duration(Math.max(...ages))];
    return `${rankList(of.map(({ rank }) => rank))} silent for ${least === most ? least : `${least} to ${most}`}, ${step === null ? "before its first step" : `after step ${count(step)}`}`;
  });
}

/** Two jobs of one name, or a restart whose first process has not gone yet. @param {RankInfo[]} ranks */
function doubled(ranks) {
  const others = (/** @type {RankInfo} */ rank) => {
    const where = [...new Set(rank.also_live_hosts)].join(", ");
    const on = where && ` on ${where}`;
    return rank.also_live === 1 ? `another process${on} also sends` : rank.also_live ? `${count(rank.also_live)} other processes${on} also send` : "";
  };
  return together(ranks, others, (who, text) => `${text} as ${who}: are there two jobs of one name? RANGEWATCH_RUN gives one a name of its own`);
}

/** @param {RankInfo[]} ranks */
const dropped = (ranks) => together(ranks, (rank) => Object.entries(rank.dropped).map(([reason, n]) => `${plural(Number(n), "record")}: ${reason}`), (who, text, many) => `${who} dropped ${many > 1 ? "each " : ""}${text}`);

/** What the agent records less of, to keep to its budget. @param {RankInfo[]} ranks */
const lowered = (ranks) => together(ranks, ({ level }) => level ?? "", (who, text, many) => `${who} record${many > 1 ? "" : "s"} less: ${text}`);

/** Where the fused kernel is not in use. @param {RankInfo[]} ranks */
function slower(ranks) {
  return together(ranks, (rank) => Object.entries(rank.not_fused ?? {}).map(([device, why]) => `${device} more slowly than it could: ${why}`), (who, text, many) => `${who} read${many > 1 ? "" : "s"} ${many > 1 ? text.replace("than it could", "than they could") : text}`);
}

/** @param {RankInfo[]} ranks */
function faults(ranks) {
  return together(ranks, (rank) => Object.entries(rank.faults).map(([place, what]) => `the agent failed in ${place} (${typeof what === "number" ? plural(what, "time") : String(what)})`), (who, text) => `${who}: ${text}`);
}

/** One line for a module however many ranks miss it. @param {RankInfo[]} ranks */
function unobserved(ranks) {
  /** @type {Map<string, number[]>} */
  const byLine = new Map();
  for (const rank of ranks) {
    for (const [module, why] of Object.entries(rank.not_observed)) {
      const line = `${module || "(the model)"} is not observed (${why})`;
      byLine.set(line, [...(byLine.get(line) ?? []), rank.rank]);
    }
  }
  return [...byLine].map(([line, on]) => `${line} on ${on.length === ranks.length && on.length > 1 ? "all ranks" : rankList(on)}`);
}
