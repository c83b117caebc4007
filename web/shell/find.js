// What the palette finds: pages, ranks, steps and actions that are known here, and layers, alerts and runs that the server
// knows.

import * as api from "../api/client.js";
import { formatState, parseState, runPath } from "../api/url_state.js";
import { chooseTheme, nextChoice, themeChoice } from "../charts/theme.js";
import { clip, count } from "../format/numbers.js";
import { holds } from "../widgets/controls/palette.js";
import { STDERR_HASH } from "../widgets/stderr_tail.js";
import { buildPath, switchedPath } from "./router.js";

/** @typedef {import("../types.js").Page} Page */
/** @typedef {import("../types.js").Run} Run */
/** @typedef {import("../widgets/controls/palette.js").Entry} Entry */
/**
 * @typedef {object} Place where the reader is
 * @property {Page | null} page
 * @property {Record<string, string>} params
 * @property {Run | null} run
 */

/** Of a kind that are listed. */
const MOST = 6;

/** Steps and ranks by number: "rank 3", "step 1,200", or the number alone. Pure. @param {string} q @param {Run} run @returns {{ranks: number[], steps: number[]}} */
export function numbered(q, run) {
  const match = /^(rank|step)?\s*(\d[\d,]{0,15})$/i.exec(q.trim());
  if (!match) return { ranks: [], steps: [] };
  const [, kind = "", digits] = match;
  const number = Number(digits.replaceAll(",", ""));
  const isRank = kind.toLowerCase() !== "step" && run.ranks.some(({ rank }) => rank === number);
  const isStep = kind.toLowerCase() !== "rank" && run.first_step !== null && run.last_step !== null && number >= run.first_step && number <= run.last_step;
  return { ranks: isRank ? [number] : [], steps: isStep ? [number] : [] };
}

/** The rank whose stderr is asked for: "stderr 3", "log of rank 3", or the first that died or failed. Pure. @param {string} q @param {Run} run @returns {number | null} */
export function stderrRank(q, run) {
  const match = /^(?:last\s+lines?|stderr|logs?|log\s+tail)(?:\s+of)?(?:\s+stderr)?(?:\s+of)?(?:\s+rank)?(?:\s+(\d{1,9}))?$/i.exec(q.trim());
  if (!match) return null;
  const first = (run.deaths ?? [])[0]?.rank ?? run.ranks.find(({ failure }) => failure)?.rank ?? run.ranks[0]?.rank;
  const rank = match[1] === undefined ? first : Number(match[1]);
  return run.ranks.some((one) => one.rank === rank) ? (rank ?? null) : null;
}

/** @param {{pages: readonly Page[], place: () => Place, navigate: (path: string) => void, help: () => void, notifications: {text: () => string, toggle: () => void}}} shell */
export function createFinder({ pages, place, navigate, help, notifications }) {
  /** @param {string} group @param {string} text @param {string} path @param {string} [hint] @returns {Entry} */
  const way = (group, text, path, hint) => ({ group, text, hint, run: () => navigate(path) });

  function pagesHere() {
    const { params } = place();
    const view = formatState({ ...parseState(location.search), step: null, key: "", from: null, to: null });
    const here = pages.filter((page) => (!page.path.includes("{id}") || params.id !== undefined) && !page.under);
    return here.map((page) => way("Page", page.title, page.path.includes("{id}") ? buildPath(page.path, params) + view : page.path, page.help));
  }

  /** Those of the shell, and the buttons that the page has. @returns {Entry[]} */
  function actions() {
    const buttons = [...document.querySelectorAll("main button[data-command]")].filter((one) => one instanceof HTMLButtonElement && one.checkVisibility() && !one.disabled && one.getAttribute("aria-disabled") !== "true");
    const own = buttons.map((one) => ({ group: "Action", text: one.getAttribute("aria-label") ?? one.textContent ?? "", run: () => /** @type {HTMLElement} */ (one).click() }));
    const theme = nextChoice(themeChoice());
    return [
      ...own.filter(({ text }) => text.trim().length > 1),
      { group: "Action", text: `Theme: ${theme}`, run: () => chooseTheme(theme) },
      { group: "Action", text: notifications.text(), run: notifications.toggle },
      { group: "Action", text: "Copy this address", run: () => void navigator.clipboard?.writeText(location.href).catch(() => {}) },
      { group: "Action", text: "Keyboard shortcuts", run: help },
    ];
  }

  /** @param {string} q @returns {Entry[]} */
  function numbers(q) {
    const { run, page, params } = place();
    if (!run) return [];
    const state = parseState(location.search);
    const { ranks, steps } = numbered(q, run);
    const pattern = page?.path.includes("{id}") ? page.path : "/runs/{id}";
    const tail = stderrRank(q, run);
    return [
      ...(tail === null ? [] : [way("Rank", `stderr of rank ${tail}`, runPath(run.id, "step", { ...state, rank: tail, step: null }) + STDERR_HASH, "its last lines")]),
      ...steps.map((step) => way("Step", `step ${count(step)}`, runPath(run.id, "step", { ...state, step }), "its values in call order")),
      ...ranks.map((rank) => way("Rank", `rank ${rank}`, buildPath(pattern, params) + formatState({ ...state, rank }), "on this page")),
    ];
  }

  return {
    /** @param {string} q @returns {Entry[]} */
    near(q) {
      const named = [...pagesHere(), ...actions()].filter(({ text, hint = "", group }) => holds(`${group} ${text} ${hint}`, q));
      return [...numbers(q), ...named.slice(0, q ? 2 * MOST : named.length)];
    },
    /** @param {string} q @param {AbortSignal} signal @returns {Promise<Entry[]>} */
    async far(q, signal) {
      const { run, page } = place();
      const state = parseState(location.search);
      const id = run ? String(run.id) : null;
      const [layers, alerts, { runs }] = await Promise.all([
        id ? api.tensors(id, { q }, signal).then(({ tensors }) => tensors, () => []) : [],
        id ? api.alerts(id, { state: "open", limit: 50 }, signal).then(({ alerts: open }) => open, () => []) : [],
        api.runs({ q, limit: MOST }, signal),
      ]);
      const pattern = page?.path.includes("{id}") ? page.path : "/runs/{id}";
      return [
        ...alerts.filter(({ finding }) => holds(`alert ${finding.rule.replaceAll("_", " ")} ${finding.summary}`, q)).slice(0, MOST).map(({ id: alert, finding }) => way("Alert", finding.summary, runPath(String(id), "alerts", { ...parseState(""), key: String(alert) }))),
        ...layers.slice(0, MOST).map(({ label, tensor }) => way("Layer", label, runPath(String(id), "layers", { ...state, tensor, step: null }))),
        ...runs.map((other) => way("Run", clip(other.title || other.name, 200), switchedPath(pattern, state, other), other.state)),
      ];
    },
  };
}
