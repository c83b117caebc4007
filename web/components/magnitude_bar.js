// One tensor's magnitudes on a log scale that runs from the dtype's smallest normal to its largest finite number.

import { el } from "../dom.js";
import { magnitude } from "../format.js";
import { heatOf } from "../headroom.js";
import { magnitudeSpan } from "../magnitude_span.js";

/** @param {import("../types.js").Frame} frame */
export function magnitudeBar(frame) {
  const bar = el("div", { class: "magnitude", role: "img", "aria-label": wordsFor(frame), title: wordsFor(frame) });
  const span = magnitudeSpan(frame);
  if (span) bar.append(fill(frame, span));
  if (frame.nan_count || frame.inf_count) bar.append(el("span", { class: "magnitude-bad" }));
  return bar;
}

/** @param {import("../types.js").Frame} frame @param {{from: number | null, to: number}} span fractions of the width */
function fill(frame, { from, to }) {
  const inner = el("span", { class: from === null ? "magnitude-point" : "magnitude-fill", "data-heat": heatOf(frame.headroom_bits) });
  inner.style.left = `${(from ?? to) * 100}%`;
  if (from !== null) inner.style.width = `${Math.max(0.01, to - from) * 100}%`;
  return inner;
}

/** @param {import("../types.js").Frame} frame */
function wordsFor(frame) {
  const low = frame.amin === null ? "abs min not measured" : `abs min ${magnitude(frame.amin)}`;
  const high = frame.amax === null ? "no finite abs max" : `abs max ${magnitude(frame.amax)}`;
  return `${low}, ${high}; ${frame.dtype} goes from ${magnitude(frame.smallest_normal)} to ${magnitude(frame.max_finite)}`;
}
