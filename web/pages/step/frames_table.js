// The table of the tensors of one rank and step in call order, and a window on it where there are thousands.

import { onward, runPath } from "../../api/url_state.js";
import { heatOf, stateLabel } from "../../charts/statistics.js";
import { el, link, replace } from "../../format/dom.js";
import { bits, count, magnitude, plural, shape } from "../../format/numbers.js";

/** @typedef {import("../../types.js").StepAnswer} StepAnswer */

/** @param {import("../../types.js").PageContext} ctx */
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

  /** @param {Window} next */
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
      draw(key === scrolledTo ? clamped(part, rows.length) : windowAround(rows.length, rows.indexOf(target)));
      if (key !== scrolledTo) show(target);
      scrolledTo = key;
    },
  };
}

// Which frames a table holds at once: thousands of rows would make the page heavy.

/** @typedef {import("../../types.js").Frame} Frame */
/** @typedef {{from: number, to: number}} Window Positions, from inclusive, to exclusive. */

/** Rows drawn at first, and added by each wish for more. */
export const WINDOW = 400;
/** Of these, how many lie before the frame pointed at. */
const BEFORE = 100;

/** The frames whose name or kind holds some text, as numbers. @param {readonly Pick<Frame, "label">[]} frames @param {string} text */
export function matching(frames, text) {
  const wanted = text.toLowerCase();
  return frames.flatMap((frame, i) => (frame.label.toLowerCase().includes(wanted) ? i : []));
}

/** A window around a position, or at the start. @param {number} length @param {number} position -1 for none @returns {Window} */
export function windowAround(length, position) {
  const from = position < WINDOW - BEFORE ? 0 : Math.min(position - BEFORE, Math.max(0, length - WINDOW));
  return { from, to: Math.min(length, from + WINDOW) };
}

/** The same window over a list of another length: no smaller than a fresh one. @param {Window} shown @param {number} length @returns {Window} */
export const clamped = ({ from, to }, length) => ({ from, to: Math.min(length, Math.max(to, from + WINDOW)) });

/** @param {Window} shown @returns {Window} */
export const withEarlier = ({ from, to }) => ({ from: Math.max(0, from - WINDOW), to });

/** @param {Window} shown @param {number} length @returns {Window} */
export const withLater = ({ from, to }, length) => ({ from, to: Math.min(length, to + WINDOW) });

// One frame as a table row: its magnitudes between the dtype's limits, and what is wrong with it.

const COLUMNS = ["Order", "Name", "Kind", "Type", "abs min", "abs max", "Magnitude", "Headroom", "NaN", "Inf", "What"];
const NUMERIC = new Set(["Order", "abs min", "abs max", "Headroom", "NaN", "Inf"]);

/** @param {import("../../types.js").PageContext} ctx @param {StepAnswer} answer @param {number} index of the frame @param {number | null} tensor the one to point at */
function frameRow(ctx, answer, index, tensor) {
  const frame = answer.frames[index];
  const first = index === answer.first_nonfinite;
  const chosen = frame.tensor === tensor;
  const cells = cellsOf(ctx, answer, frame).map((cell, i) => el("td", { "data-column": COLUMNS[i], class: NUMERIC.has(COLUMNS[i]) && "number" }, cell));
  const marks = { "data-state": frame.state, "data-chosen": chosen, "aria-current": chosen && "true", "data-first": first, "data-testid": first && "first-nonfinite" };
  return el("tr", marks, ...cells);
}

/** @param {import("../../types.js").PageContext} ctx @param {StepAnswer} answer @param {Frame} frame @returns {import("../../format/dom.js").Child[]} */
function cellsOf({ params, state }, answer, frame) {
  const path = runPath(params.id, "tensor", onward(state, { tensor: frame.tensor, rank: answer.rank }));
  return [
    frame.call_index,
    link(path, { class: "name", title: `${nameOf(frame)}: ${frame.module}, ${shape(frame.shape)}` }, ...breakable(nameOf(frame))),
    frame.kind,
    frame.dtype,
    minimum(frame),
    frame.amax === null ? nothingFinite(frame) : magnitude(frame.amax),
    magnitudeBar(frame),
    headroom(frame),
    tally(frame.nan_count),
    tally(frame.inf_count),
    frame.what || (frame.state === "value" ? null : stateLabel(frame.state)),
  ];
}

/** @param {Frame} frame */
const nameOf = ({ fqn, index }) => (index > 0 ? `${fqn} [${index}]` : fqn) || "(the model)";

/** @param {Frame} frame */
function minimum(frame) {
  return frame.amin === null ? muted(frame.full ? nothingFinite(frame) : "not measured") : magnitude(frame.amin);
}

/** @param {Frame} frame */
const nothingFinite = (frame) => (frame.state === "zero" ? "0" : frame.state === "nan" || frame.state === "inf" ? "none finite" : "not measured");

/** @param {Frame} frame */
function headroom(frame) {
  if (frame.headroom_bits === null) return muted(stateLabel(frame.state));
  return el("span", { class: "heat", "data-heat": heatOf(frame.headroom_bits) }, bits(frame.headroom_bits));
}

/** @param {number | null} n */
const tally = (n) => (n ? el("strong", { class: "bad" }, count(n)) : n === 0 ? muted("0") : muted("not measured"));

/** @param {string} text */
const muted = (text) => el("span", { class: "muted" }, text);

// One tensor's magnitudes on a log scale that runs from the dtype's smallest normal to its largest finite number.

/** @param {import("../../types.js").Frame} frame */
function magnitudeBar(frame) {
  const bar = el("div", { class: "magnitude", role: "img", "aria-label": rangeText(frame), title: rangeText(frame) });
  const span = magnitudeSpan(frame);
  if (span) bar.append(fill(frame, span));
  if (frame.nan_count || frame.inf_count) bar.append(el("span", { class: "magnitude-bad" }));
  return bar;
}

/** @param {import("../../types.js").Frame} frame @param {{from: number | null, to: number}} span fractions of the width */
function fill(frame, { from, to }) {
  const inner = el("span", { class: from === null ? "magnitude-point" : "magnitude-fill", "data-heat": heatOf(frame.headroom_bits) });
  inner.style.left = `${(from ?? to) * 100}%`;
  if (from !== null) inner.style.width = `${Math.max(0.01, to - from) * 100}%`;
  return inner;
}

/** @param {import("../../types.js").Frame} frame */
function rangeText(frame) {
  const low = frame.amin === null ? "abs min not measured" : `abs min ${magnitude(frame.amin)}`;
  const high = frame.amax === null ? "no finite abs max" : `abs max ${magnitude(frame.amax)}`;
  return `${low}, ${high}; ${frame.dtype} goes from ${magnitude(frame.smallest_normal)} to ${magnitude(frame.max_finite)}`;
}

// Where magnitudes lie between a dtype's limits.

/** @typedef {{amin: number | null, amax: number | null, smallest_normal: number, max_finite: number}} Magnitudes */

/**
 * Fractions of the log range, 0 at the smallest normal and 1 at the largest finite; `from` is null when amin is unknown.
 * @param {Magnitudes} frame @returns {{from: number | null, to: number} | null}
 */
export function magnitudeSpan({ amin, amax, smallest_normal, max_finite }) {
  if (amax === null || !(amax > 0)) return null;
  const at = (/** @type {number} */ value) => clamp(Math.log2(value / smallest_normal) / Math.log2(max_finite / smallest_normal));
  return { from: amin !== null && amin > 0 ? at(amin) : null, to: at(amax) };
}

/** @param {number} fraction */
const clamp = (fraction) => Math.max(0, Math.min(1, fraction));

// A dotted name that breaks after its dots and underscores before it breaks anywhere else.

/** @param {string} name @returns {import("../../format/dom.js").Child[]} */
function breakable(name) {
  return name.split(/(?<=[._])/).flatMap((piece, i) => (i > 0 ? [el("wbr"), piece] : [piece]));
}
