// Which frames a table holds at once: thousands of rows would make the page heavy. Pure.

/** @typedef {import("./types.js").Frame} Frame */
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
export const kept = ({ from, to }, length) => ({ from, to: Math.min(length, Math.max(to, from + WINDOW)) });

/** @param {Window} shown @returns {Window} */
export const withEarlier = ({ from, to }) => ({ from: Math.max(0, from - WINDOW), to });

/** @param {Window} shown @param {number} length @returns {Window} */
export const withLater = ({ from, to }, length) => ({ from, to: Math.min(length, to + WINDOW) });
