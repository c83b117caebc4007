// The frames of one rank and step in call order; a window of them where there are thousands.

import { el, replace } from "../dom.js";
import { count, plural } from "../format.js";
import { kept, matching, windowAround, withEarlier, withLater } from "../frame_window.js";
import { COLUMNS, frameRow } from "./frame_row.js";

/** @typedef {import("../types.js").StepAnswer} StepAnswer */

/** @param {import("../types.js").PageContext} ctx */
export function createFramesTable(ctx) {
  const body = el("tbody");
  const head = el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col", "data-column": name }, name)));
  const table = el("table", { class: "dense frames-table", "data-testid": "frames-table" }, el("thead", {}, head), body);
  const scroll = el("div", { class: "panel table-scroll frames-scroll", tabindex: 0, role: "region", "aria-label": "Frames in call order" }, table);
  const more = el("div", { class: "frames-more" });
  /** @type {{answer: StepAnswer, tensor: number | null} | null} */
  let shown = null;
  /** Numbers of the frames that match the filter, and the part of them that is drawn. @type {number[]} */
  let rows = [];
  let part = { from: 0, to: 0 };
  /** The frame last scrolled to, so that a live update leaves the reader where they are. */
  let scrolledTo = "";

  /** @param {import("../frame_window.js").Window} next */
  function draw(next) {
    if (!shown) return;
    const { answer, tensor } = shown;
    part = next;
    replace(body, ...rows.slice(part.from, part.to).map((index) => frameRow(ctx, answer, index, tensor)));
    replace(more, ...controls());
  }

  /** Adding rows above keeps those in view where they are. */
  function drawEarlier() {
    const before = scroll.scrollHeight;
    draw(withEarlier(part));
    scroll.scrollTop += scroll.scrollHeight - before;
  }

  function controls() {
    const { from, to } = part;
    if (!rows.length) return [el("p", {}, "No frame's name holds this text. ")];
    if (from === 0 && to === rows.length) return [];
    const wish = (/** @type {string} */ name, /** @type {() => void} */ click) => el("button", { type: "button", class: "quiet", click }, name);
    return [
      el("span", { class: "muted" }, `Frames ${count(from + 1)} to ${count(to)} of ${count(rows.length)} are listed.`),
      from > 0 && wish("Earlier ones", drawEarlier),
      to < rows.length && wish("Later ones", () => draw(withLater(part, rows.length))),
      wish(`All ${plural(rows.length, "frame")}`, () => draw({ from: 0, to: rows.length })),
    ];
  }

  /** @param {number} index of a frame */
  function show(index) {
    const at = rows.indexOf(index);
    if (at < 0) return;
    if (at < part.from || at >= part.to) draw(windowAround(rows.length, at));
    const row = /** @type {HTMLElement} */ (body.children[at - part.from]);
    scroll.scrollTop = row.offsetTop - scroll.clientHeight / 2 + row.offsetHeight / 2;
  }

  return {
    element: el("div", {}, scroll, more),
    show,
    /** @param {StepAnswer} answer @param {number | null} tensor the frame to point at, if the URL names one @param {string} text part of the names to list */
    update(answer, tensor, text) {
      shown = { answer, tensor };
      rows = matching(answer.frames, text);
      const chosen = answer.frames.findIndex((frame) => frame.tensor === tensor);
      const target = chosen >= 0 ? chosen : (answer.first_nonfinite ?? -1);
      const key = JSON.stringify([answer.step, answer.rank, target, text]);
      draw(key === scrolledTo ? kept(part, rows.length) : windowAround(rows.length, rows.indexOf(target)));
      if (key !== scrolledTo) show(target);
      scrolledTo = key;
    },
  };
}
