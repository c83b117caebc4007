// The panel of traces on demand: the form that asks the agents for their next steps in full, and the list of traces
// asked for.

import * as api from "../api/client.js";
import { ApiError } from "../api/fetch.js";
import { onward, runPath } from "../api/url_state.js";
import { el, link } from "../format/dom.js";
import { clip, count, duration, plural, rankList, steps } from "../format/numbers.js";
import { reuseRows } from "../format/reuse_rows.js";

/** @typedef {import("../types.js").Run} Run */

const NOT_ADMIN = "Asking for a trace needs the role admin.";
const OVER = "The run has ended: there is nothing to trace.";
/** States of a run in which agents may still answer. */
const ALIVE = new Set(["live", "hung", "empty"]);

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch */
export function createTracePanel(ctx, refetch) {
  const run = ctx.params.id;
  const button = el("button", { type: "button", class: "quiet", "aria-expanded": "false", click: () => open(form.element.hidden) }, "Trace the next steps…");
  const status = el("span", { role: "status", class: "muted" });
  const form = createTraceForm(ask, () => open(false), setStatus);
  const list = createTraceList(ctx, withdraw);
  const element = el("section", { class: "trace", "aria-label": "Traces", "data-testid": "trace-panel", hidden: true }, el("p", { class: "trace-bar" }, button, status), form.element, list.element);
  /** Asked for from this page, and not here yet. @type {Set<number>} */
  const awaited = new Set();
  const isAllowed = api.access().then(({ roles }) => roles.includes("admin"), () => true); // who may not is refused when asking, too

  /** @param {boolean} isOpened */
  function open(isOpened) {
    form.element.hidden = !isOpened;
    button.setAttribute("aria-expanded", String(isOpened));
    setStatus("");
    if (isOpened) form.focus();
    else button.focus();
  }

  /** @param {string} text */
  function setStatus(text) {
    status.textContent = text;
  }

  /** @param {import("../types.js").TraceRequest} asked */
  async function ask(asked) {
    form.busy(true);
    setStatus("Asking.");
    try {
      awaited.add((await api.askTrace(run, asked)).id);
      open(false);
      setStatus("Asked. Each rank begins at its next step.");
      refetch();
    } catch (error) {
      setStatus(failureText(error));
    } finally {
      form.busy(false);
    }
  }

  /** @param {number} command */
  async function withdraw(command) {
    try {
      await api.withdraw(run, command);
      setStatus("Withdrawn.");
    } catch (error) {
      setStatus(failureText(error));
    }
    refetch();
  }

  /** Says so once when a trace that was asked for here has come. @param {readonly Command[]} commands */
  function announce(commands) {
    for (const command of commands.filter(({ id }) => awaited.has(id))) {
      if (isOpen(command)) continue;
      awaited.delete(command.id);
      const there = arrival(command);
      setStatus(there ? "The trace has arrived." : "");
      if (there) ctx.notify(`The trace has arrived: step ${there.step}, rank ${there.rank}.`);
    }
  }

  return {
    element,
    /** @param {Run} about @param {AbortSignal} signal */
    async update(about, signal) {
      const isAlive = ALIVE.has(about.state);
      if (isAlive && element.hidden) {
        button.disabled = true;
        element.hidden = false; // its room is there before the answer
      }
      const [answer, mayAsk] = await Promise.all([api.commands(run, signal), isAllowed]);
      const traces = answer.commands.filter(({ kind }) => kind === "trace");
      button.hidden = !isAlive;
      button.disabled = !isAlive || !mayAsk;
      button.title = !mayAsk ? NOT_ADMIN : isAlive ? "" : OVER;
      if (button.disabled && !form.element.hidden) open(false);
      if (!mayAsk && isAlive) setStatus(NOT_ADMIN);
      list.update(traces, about, answer.now_ns);
      announce(traces);
      element.hidden = !isAlive && !traces.length;
    },
  };
}

// What to trace: how many steps, which modules, which ranks.

/** @param {(asked: import("../types.js").TraceRequest) => void} ask @param {() => void} cancel @param {(text: string) => void} setStatus */
function createTraceForm(ask, cancel, setStatus) {
  const steps = el("input", { type: "number", name: "steps", min: 1, max: MOST_STEPS, value: 3, required: true });
  const modules = el("input", { name: "modules", maxlength: 2000, placeholder: "all", spellcheck: "false", autocomplete: "off" });
  const ranks = el("input", { name: "ranks", maxlength: 400, placeholder: "all", spellcheck: "false", autocomplete: "off", inputmode: "numeric" });
  const field = (/** @type {string} */ name, /** @type {HTMLElement} */ input, /** @type {string} */ help) => el("label", { class: "trace-field" }, name, input, el("small", { class: "muted" }, help));
  const send = el("button", { type: "submit" }, "Trace");
  const element = el(
    "form",
    { class: "trace-form", "aria-label": "Trace the next steps", hidden: true, submit: submitted },
    field("Steps", steps, `1 to ${MOST_STEPS}; each costs several times a usual one`),
    field("Modules", modules, "such as blocks.*, decoder.norm"),
    field("Ranks", ranks, "such as 0, 2-5"),
    el("div", { class: "trace-buttons" }, send, el("button", { type: "button", class: "quiet", click: cancel }, "Cancel")),
  );
  element.addEventListener("keydown", ({ key }) => key === "Escape" && cancel());

  /** @param {SubmitEvent} event */
  function submitted(event) {
    event.preventDefault();
    try {
      ask({ steps: Number(steps.value), modules: patternsOf(modules.value), ranks: ranksOf(ranks.value) });
    } catch (error) {
      setStatus(error instanceof Error ? error.message : String(error));
    }
  }

  return {
    element,
    focus: () => steps.select(),
    /** @param {boolean} isBusy */
    busy: (isBusy) => void (send.disabled = isBusy),
  };
}

// The traces that were asked for, each with what became of it on every rank, until it is here and its Step page can be opened.

/** Finished ones that are shown beside those under way: the newest, if it is of the last hour. Nanoseconds. */
const RECENT_NS = 3600e9;

/** @param {import("../types.js").PageContext} ctx @param {(command: number) => void} withdraw */
function createTraceList(ctx, withdraw) {
  const now = el("ul", { class: "plain-list trace-list" });
  const earlier = el("ul", { class: "plain-list trace-list" });
  const summary = el("summary");
  const rest = el("details", { class: "trace-earlier", hidden: true }, summary, earlier);
  const element = el("div", { class: "trace-lists", hidden: true }, now, rest);

  return {
    element,
    /** @param {readonly Command[]} commands newest first @param {Run} run @param {number} nowNs */
    update(commands, run, nowNs) {
      const newest = commands[0];
      const isShown = (/** @type {Command} */ each) => isOpen(each) || (each === newest && nowNs - each.created_ns < RECENT_NS);
      const old = commands.filter((each) => !isShown(each));
      const row = (/** @type {Command} */ each) => rowOf(each, run, nowNs, ctx.state, withdraw);
      reuseRows(now, commands.filter(isShown).map(row));
      reuseRows(earlier, old.map(row));
      rest.hidden = !old.length;
      summary.textContent = `Earlier traces (${count(old.length)})`;
      element.hidden = !commands.length;
    },
  };
}

/** @param {Command} command @param {Run} run @param {number} nowNs @param {import("../types.js").ViewState} state @param {(command: number) => void} withdraw */
function rowOf(command, run, nowNs, state, withdraw) {
  const there = arrival(command);
  const open = isOpen(command);
  const share = progress(command, run.ranks);
  const lines = rankLines(command, run.ranks).map((line) => el("li", {}, line));
  const bar = el("progress", { max: 1, value: share, "aria-label": "Share of the traced steps that are here" });
  const back = el("button", { type: "button", class: "quiet", click: () => withdraw(command.id) }, "Withdraw");
  return el(
    "li",
    { "data-key": command.id, "data-testid": "trace", "data-state": open ? "open" : there ? "here" : "ended" },
    el("p", { class: "trace-head" }, headline(command, nowNs), " ", open && bar, there && openLink(run, there, state), isPending(command) && back),
    el("ul", { class: "trace-ranks" }, ...lines),
  );
}

/** @param {Run} run @param {{step: number, rank: number}} there @param {import("../types.js").ViewState} state */
const openLink = (run, { step, rank }, state) => link(runPath(run.id, "step", onward(state, { step, rank })), { class: "trace-open" }, `Open step ${count(step)}, rank ${rank}`);

// Texts of what became of a trace that was asked for.

/** @typedef {import("../types.js").Command} Command */
/** @typedef {import("../types.js").CommandRank} CommandRank */
/** @typedef {Pick<import("../types.js").RankInfo, "rank" | "last_step">} Reached how far a rank has come */

const MOST_STEPS = 1000;
const MOST_REASON = 200;
const MINUTE_NS = 60e9;
const OPEN = new Set(["pending", "accepted"]);

/** Whether more is to come of it. @param {Command} command */
export const isOpen = ({ states }) => states.some(({ state }) => OPEN.has(state));

/** Whether it can be taken back. @param {Command} command */
export const isPending = ({ states }) => states.some(({ state }) => state === "pending");

/** The first step that is there in full, and a rank that has it; null as long as none has. @param {Command} command */
export function arrival({ states }) {
  const done = states.filter(({ state, first_step: first }) => state === "done" && first !== null);
  const [first] = [...done].sort((a, b) => Number(a.first_step) - Number(b.first_step) || a.rank - b.rank);
  return first ? { step: Number(first.first_step), rank: first.rank } : null;
}

/** "10 steps of blocks.*, ranks 0 and 1". @param {Command} command */
export function askedText({ steps: n = 1, modules = [], ranks }) {
  const what = modules.length ? ` of ${clip(modules.join(", "), 80)}` : "";
  return `${plural(n, "step")}${what}, ${ranks === null ? "all ranks" : rankList(ranks)}`;
}

/** Of a rank's traced steps how many have come to the server. @param {CommandRank} at @param {Reached | undefined} reached */
function stepsIn({ state, first_step: first, last_step: last }, reached) {
  if (first === null || last === null) return 0;
  const newest = state === "done" ? last : Math.min(last, reached?.last_step ?? -1);
  return Math.max(0, newest - first + 1);
}

/** Share of all that was asked for that has come, 0 to 1. @param {Command} command @param {readonly Reached[]} ranks */
export function progress({ states, steps: n = 1 }, ranks) {
  const wanted = states.filter(({ state }) => OPEN.has(state) || state === "done");
  const got = wanted.map((at) => (at.state === "done" ? 1 : Math.min(1, stepsIn(at, ranks.find(({ rank }) => rank === at.rank)) / n)));
  return got.length ? got.reduce((a, b) => a + b, 0) / got.length : 0;
}

/** One line for the ranks that are alike: "ranks 0-3: traced, steps 100-109". @param {Command} command @param {readonly Reached[]} ranks */
export function rankLines(command, ranks) {
  /** @type {Map<string, number[]>} */
  const alike = new Map();
  for (const at of command.states) {
    const text = stateText(at, ranks.find(({ rank }) => rank === at.rank), command.steps ?? 1);
    alike.set(text, [...(alike.get(text) ?? []), at.rank]);
  }
  return [...alike].map(([text, mine]) => `${rankList(mine)}: ${text}`);
}

/** @param {CommandRank} at @param {Reached | undefined} reached @param {number} n */
function stateText(at, reached, n) {
  const { state, first_step: first, last_step: last, reason, live } = at;
  const span = first !== null && last !== null ? `, ${steps({ start: first, stop: last + 1 })}` : first !== null ? `, from step ${count(first)}` : "";
  const why = reason ? `: ${clip(reason, MOST_REASON)}` : "";
  switch (state) {
    case "pending":
      return live ? "has not answered yet; it begins at its next step" : "has not answered, and has been silent for a while";
    case "accepted":
      return `tracing${span}; ${count(Math.min(n, stepsIn(at, reached)))} of ${count(n)} arrived`;
    case "done":
      return `traced${span}${why}`;
    case "refused":
      return `refused${why}`;
    case "expired":
      return `expired${why}`;
    case "withdrawn":
      return "withdrawn before it began";
    default:
      return clip(state, 40);
  }
}

/** @param {Command} command @param {number} nowNs */
export function headline(command, nowNs) {
  const what = `Trace of ${askedText(command)}`;
  if (isOpen(command)) return `${what}: under way.`;
  const passedNs = nowNs - command.created_ns;
  const ago = passedNs < MINUTE_NS ? "asked just now" : `asked ${duration(passedNs)} ago`; // a line that counts seconds could not be read
  if (arrival(command)) return `${what}, ${ago}: complete.`;
  const isWithdrawn = command.states.some(({ state }) => state === "withdrawn");
  return `${what}, ${ago}: ${isWithdrawn ? "withdrawn" : "failed"}.`;
}

/** Module patterns as they are typed, one a line or between commas. @param {string} text */
export const patternsOf = (text) => text.split(/[\n,]/).map((one) => one.trim()).filter(Boolean);

/**
 * "0, 2-5" as ranks; null: all. Throws a sentence for what is no list of ranks.
 * @param {string} text @returns {number[] | null}
 */
export function ranksOf(text) {
  const parts = text.split(/[\s,]+/).filter(Boolean);
  if (!parts.length) return null;
  const ranks = parts.flatMap((part) => {
    const [, low, high = low] = /^(\d{1,6})(?:-(\d{1,6}))?$/.exec(part) ?? [];
    const count = Number(high) - Number(low) + 1;
    if (low === undefined || count < 1 || count > 100_000) throw new Error(`"${clip(part, 40)}" is no rank: write ranks as 0, 2-5.`);
    return Array.from({ length: count }, (_, i) => Number(low) + i);
  });
  return [...new Set(ranks)].sort((a, b) => a - b);
}

/** Why it could not be asked for, and what to do. @param {unknown} error */
export function failureText(error) {
  if (!(error instanceof ApiError)) return error instanceof Error ? error.message : String(error);
  if (error.status === 403) return "Your token may read but not request traces: that needs the role admin.";
  if (error.code === "not_live") return `There is nothing to trace: ${error.message}.`;
  if (error.code === "not_pending") return "Every rank has answered already: it can no longer be withdrawn.";
  if (error.code === "too_many_commands") return "Too many wait for an answer already: withdraw some, or wait for them.";
  if (error.status === 429) return "The server has too much to do just now: try again in a moment.";
  if (error.status === 0) return error.message;
  return `The server did not take it: ${error.message}.`;
}
