// A line as small as a word: values over a run, for the cell of a table.

import { el, svg } from "../../format/dom.js";

const WIDTH = 76;
const HEIGHT = 20;
const PAD = 2;

/** @param {readonly (number | null)[]} values null: none here @param {readonly number[]} bad places of NaN or Inf @param {string} label what a screen reader says @returns {Element} */
export function sparkline(values, bad, label) {
  if (!values.length) return el("span", {});
  const x = (/** @type {number} */ i) => PAD + (i * (WIDTH - 2 * PAD)) / Math.max(1, values.length - 1);
  return svg(
    "svg",
    { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": label },
    svg("path", { class: "spark-line", d: linePath(values, x) }),
    ...bad.map((at) => badMark(x(at))),
  );
}

/** From the least to the largest value; a hole where there is none. Pure. @param {readonly (number | null)[]} values @param {(i: number) => number} x */
export function linePath(values, x) {
  const known = values.filter((value) => value !== null);
  const low = Math.min(...known);
  const span = Math.max(...known) - low;
  const y = (/** @type {number} */ value) => (span > 0 ? HEIGHT - PAD - ((value - low) / span) * (HEIGHT - 2 * PAD) : HEIGHT / 2);
  let pen = "M";
  return values
    .map((value, i) => {
      const piece = value === null ? "" : `${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = value === null ? "M" : "L";
      return piece;
    })
    .join("");
}

/** A full-height bar with a foot: a shape, not only a colour. @param {number} x */
const badMark = (x) => svg("path", { class: "spark-bad", d: `M${x.toFixed(1)} ${HEIGHT}V0M${(x - 2).toFixed(1)} 1h4` });
