// What every page of a run does alike: fetch the run, keep fresh, say what is wrong.

import * as api from "../api.js";
import { el, replace } from "../dom.js";
import { clip } from "../format.js";
import { createRefresher } from "../refresher.js";
import { soonAfter } from "../soon_after.js";
import { formatState } from "../url_state.js";
import { waitingRun } from "./empty_state.js";
import { errorState, mayHeal } from "./error_state.js";
import { createRunHeader } from "./run_header.js";

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
 * @param {HTMLElement} root @param {PageContext} ctx @param {string} title
 * @param {(refetch: () => void) => RunView} build called once the run has a step
 * @param {{needsStep?: boolean, tellsHang?: boolean}} [options] needsStep false: built at once
 * @returns {() => void} unmount
 */
export function mountRunPage(root, ctx, title, build, { needsStep = true, tellsHang = true } = {}) {
  const header = createRunHeader({ tellsHang });
  const body = el("div", { class: "run-body" });
  const shell = el("div", { class: "run-page" }, header.element, body);
  /** @type {RunView | null} */
  let view = null;
  /** To this page or along it, since the last load began. */
  let hasMoved = true;
  /** Once, all of it. */
  let isShown = false;
  const refresher = createRefresher(load, failed);

  /** @param {AbortSignal} signal */
  async function load(signal) {
    const known = hasMoved ? ctx.knownRun() : null;
    hasMoved = false;
    if (!known) return show(await ask(signal), signal);
    // All that is shown hangs on the run's facts, and those that the page before was told are seldom old.
    header.update(known, ctx.clock());
    const shown = show(known, signal);
    const [run] = await Promise.all([soonAfter(shown).then(() => ask(signal)), shown]);
    if (!isSame(run, known)) refresher.soon();
  }

  /** @param {AbortSignal} signal */
  async function ask(signal) {
    signal.throwIfAborted();
    const run = await api.run(ctx.params.id, signal);
    signal.throwIfAborted();
    ctx.sawRun(run);
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
      replace(body, view.element);
    }
    await view.update(run, signal);
    isShown = true;
  }

  /** @param {Run} run */
  function waiting(run) {
    const said = waitingRun(run);
    if (body.textContent !== said.textContent) replace(body, said);
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

/** Whether rows alone were put into another order, which needs nothing from the server: tables follow by themselves. @param {ViewState} before @param {ViewState} after */
const isOnlyOrder = (before, after) => formatState(before) !== formatState(after) && formatState({ ...before, orders: [] }) === formatState({ ...after, orders: [] });

const TIMES = new Set(["now_ns", "last_seen_ns"]);

/** Whether nothing of the run is other than it was, but the time. @param {Run} run @param {Run} known */
const isSame = (run, known) => factsOf(run) === factsOf(known);

/** @param {Run} run */
const factsOf = (run) => JSON.stringify(run, (name, value) => (TIMES.has(name) ? 0 : value));

/** @param {unknown} error */
const messageOf = (error) => (error instanceof Error ? error.message : String(error));
