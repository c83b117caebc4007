// Trace on demand: asks the agents for their next steps in full, and follows what becomes of it. The same on several pages.

import * as api from "../api.js";
import { el } from "../dom.js";
import { arrival, failureText, isOpen } from "../trace_words.js";
import { createTraceForm } from "./trace_form.js";
import { createTraceList } from "./trace_list.js";

/** @typedef {import("../trace_words.js").Command} Command */
/** @typedef {import("../trace_words.js").TraceAsked} TraceAsked */
/** @typedef {import("../types.js").Run} Run */

const NOT_ADMIN = "Asking for a trace needs the role admin.";
const OVER = "The run has ended: nobody is there to trace.";
/** States of a run in which agents may still answer. */
const ALIVE = new Set(["live", "stale", "empty"]);

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch */
export function createTracePanel(ctx, refetch) {
  const run = ctx.params.id;
  const button = el("button", { type: "button", class: "quiet", "aria-expanded": "false", click: () => open(form.element.hidden) }, "Trace the next steps…");
  const said = el("span", { role: "status", class: "muted" });
  const form = createTraceForm(ask, () => open(false), say);
  const list = createTraceList(ctx, withdraw);
  const element = el("section", { class: "trace", "aria-label": "Traces", "data-testid": "trace-panel", hidden: true }, el("p", { class: "trace-bar" }, button, said), form.element, list.element);
  /** Asked for from this page, and not here yet. @type {Set<number>} */
  const awaited = new Set();
  const isAllowed = api.access().then(({ roles }) => roles.includes("admin"), () => true); // who may not is told when asking, too

  /** @param {boolean} isOpened */
  function open(isOpened) {
    form.element.hidden = !isOpened;
    button.setAttribute("aria-expanded", String(isOpened));
    say("");
    if (isOpened) form.focus();
    else button.focus();
  }

  /** @param {string} text */
  function say(text) {
    said.textContent = text;
  }

  /** @param {TraceAsked} asked */
  async function ask(asked) {
    form.busy(true);
    say("Asking.");
    try {
      awaited.add((await api.askTrace(run, asked)).id);
      open(false);
      say("Asked. Each rank begins at its next step.");
      refetch();
    } catch (error) {
      say(failureText(error));
    } finally {
      form.busy(false);
    }
  }

  /** @param {number} command */
  async function withdraw(command) {
    try {
      await api.withdraw(run, command);
      say("Taken back.");
    } catch (error) {
      say(failureText(error));
    }
    refetch();
  }

  /** Says so once when a trace that was asked for here has come. @param {readonly Command[]} commands */
  function announce(commands) {
    for (const command of commands.filter(({ id }) => awaited.has(id))) {
      if (isOpen(command)) continue;
      awaited.delete(command.id);
      const there = arrival(command);
      say(there ? "The trace is here." : "");
      if (there) ctx.say(`The trace is here: step ${there.step}, rank ${there.rank}.`);
    }
  }

  return {
    element,
    /** @param {Run} about @param {AbortSignal} signal */
    async update(about, signal) {
      const [found, mayAsk] = await Promise.all([api.commands(run, signal), isAllowed]);
      const traces = found.commands.filter(({ kind }) => kind === "trace");
      const isAlive = ALIVE.has(about.state);
      button.disabled = !isAlive || !mayAsk;
      button.title = !mayAsk ? NOT_ADMIN : isAlive ? "" : OVER;
      if (button.disabled && !form.element.hidden) open(false);
      if (!mayAsk && isAlive) say(NOT_ADMIN);
      list.update(traces, about, found.now_ns);
      announce(traces);
      element.hidden = !isAlive && !traces.length;
    },
  };
}
