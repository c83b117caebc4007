// The last lines that a rank wrote to stderr: folded, and asked for only once they are opened.

import * as api from "../api/client.js";
import { el, replace } from "../format/dom.js";
import { count } from "../format/numbers.js";
import { copyButton } from "./controls/copy_button.js";

/** In an address: they are open at once. */
export const STDERR_HASH = "#stderr";

/**
 * Of one rank. `update` with every change of the run; what is folded asks for nothing.
 * @param {string | number} run @param {number} rank
 */
export function createStderrTail(run, rank) {
  const note = el("p", { class: "muted", role: "status" });
  const lines = el("pre", { tabindex: 0, "aria-label": `Last lines of stderr of rank ${rank}`, hidden: true });
  const copy = copyButton(() => lines.textContent ?? "", "Copy the lines");
  const element = el("details", { class: "panel report stack", "data-testid": "stderr-tail", "data-rank": rank, toggle: () => void load() }, el("summary", {}, `Last lines of stderr of rank ${rank}`), note, copy, lines);
  copy.hidden = true;
  let isAsking = false;

  /** @param {AbortSignal} [signal] */
  async function load(signal) {
    if (!element.open || isAsking) return;
    isAsking = true;
    if (!note.textContent) note.textContent = "Asking for them.";
    try {
      show(await api.stderr(String(run), rank, signal));
    } catch (error) {
      if (!signal?.aborted) note.textContent = `Not known now: ${error instanceof Error ? error.message : String(error)}`;
    } finally {
      isAsking = false;
    }
  }

  /** @param {import("../types.js").StderrTail} tail */
  function show(tail) {
    note.textContent = stderrNote(tail);
    lines.hidden = copy.hidden = tail.lines.length === 0;
    const text = tail.lines.join("\n");
    if (lines.textContent === text) return; // what the reader is selecting stays
    const isAtEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
    replace(lines, text);
    if (isAtEnd) lines.scrollTop = lines.scrollHeight;
  }

  return {
    element,
    /** @param {AbortSignal} [signal] */
    update: (signal) => load(signal),
    open: () => void (element.open = true),
  };
}

/** Where the lines are from and of which step, and whether there were more. Pure. @param {import("../types.js").StderrTail} tail */
export function stderrNote({ is_recorded: isRecorded, step, note, is_cut: isCut }) {
  if (!isRecorded) return note;
  return [step === null ? "" : `At step ${count(step)}.`, note, isCut ? "There was more before." : ""].filter(Boolean).join(" ");
}

/**
 * Those of several ranks, one after the other: a rank that stays keeps its lines, opened or not.
 * @param {string | number} run
 */
export function createStderrTails(run) {
  const element = el("div", { class: "stderr-tails", hidden: true });
  /** @type {Map<number, ReturnType<typeof createStderrTail>>} */
  let shown = new Map();
  return {
    element,
    /** @param {readonly number[]} ranks @param {AbortSignal} [signal] */
    async update(ranks, signal) {
      const next = new Map(ranks.map((rank) => [rank, shown.get(rank) ?? createStderrTail(run, rank)]));
      const isSame = [...next.keys()].join() === [...shown.keys()].join();
      shown = next;
      element.hidden = ranks.length === 0;
      if (!isSame) replace(element, ...[...next.values()].map((one) => one.element));
      const [first] = next.values();
      if (first && location.hash === STDERR_HASH) {
        history.replaceState(null, "", location.pathname + location.search); // once: it may be folded again
        first.open();
        first.element.scrollIntoView({ block: "nearest" });
      }
      await Promise.all([...next.values()].map((one) => one.update(signal)));
    },
  };
}
