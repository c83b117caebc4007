// The traces that were asked for, each with what became of it on every rank, until it is here and its Step page can be opened.

import { el, link } from "../dom.js";
import { count } from "../format.js";
import { keepRows } from "../keep_rows.js";
import { arrival, headline, isOpen, isPending, progress, rankLines } from "../trace_words.js";
import { onward, runPath } from "../url_state.js";

/** @typedef {import("../trace_words.js").Command} Command */
/** @typedef {import("../types.js").Run} Run */

/** Finished ones that are shown beside those under way: the newest, if it is of the last hour. Nanoseconds. */
const RECENT_NS = 3600e9;

/** @param {import("../types.js").PageContext} ctx @param {(command: number) => void} withdraw */
export function createTraceList(ctx, withdraw) {
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
      keepRows(now, commands.filter(isShown).map(row));
      keepRows(earlier, old.map(row));
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
