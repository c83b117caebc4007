// A run's least headroom over time, in a table cell.

import { el, svg } from "../dom.js";
import { bits } from "../format.js";
import { SCALE_TOP } from "../headroom.js";

const WIDTH = 120;
const HEIGHT = 22;
const PAD = 2;

/** @param {(number | null)[]} values bits; -1 is NaN or Inf @returns {Element} */
export function sparkline(values) {
  if (!values.length) return el("span", { class: "muted" }, "none yet");
  const x = (/** @type {number} */ i) => PAD + (i * (WIDTH - 2 * PAD)) / Math.max(1, values.length - 1);
  const marks = values.flatMap((value, i) => (value === -1 ? overflowMark(x(i)) : []));
  return svg(
    "svg",
    { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": summary(values) },
    svg("line", { class: "spark-floor", x1: PAD, x2: WIDTH - PAD, y1: HEIGHT - PAD, y2: HEIGHT - PAD }),
    svg("path", { class: "spark-line", d: path(values, x) }),
    ...marks,
  );
}

/** @param {(number | null)[]} values @param {(i: number) => number} x */
function path(values, x) {
  let pen = "M";
  return values
    .map((value, i) => {
      if (value === null || value < 0) {
        pen = "M";
        return "";
      }
      const y = HEIGHT - PAD - (Math.min(value, SCALE_TOP) / SCALE_TOP) * (HEIGHT - 2 * PAD);
      const piece = `${pen}${x(i).toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
      return piece;
    })
    .join("");
}

/** A full-height bar with a foot: a shape, not only a colour. @param {number} x */
function overflowMark(x) {
  return svg("path", { class: "spark-bad", d: `M${x.toFixed(1)} ${HEIGHT}V0M${(x - 2).toFixed(1)} 1h4` });
}

/** @param {(number | null)[]} values */
function summary(values) {
  const known = values.filter((value) => value !== null && value >= 0);
  const overflow = values.includes(-1) ? ", NaN or Inf seen" : "";
  return known.length ? `least headroom over time, lowest ${bits(Math.min(.../** @type {number[]} */ (known)))}${overflow}` : `no finite headroom${overflow}`;
}
