// One frame as a table row: its magnitudes between the dtype's limits, and what is wrong with it.

import { el, link } from "../dom.js";
import { bits, count, magnitude, shape } from "../format.js";
import { heatOf, stateWord } from "../headroom.js";
import { onward, runPath } from "../url_state.js";
import { magnitudeBar } from "./magnitude_bar.js";
import { breakable } from "./name_text.js";

/** @typedef {import("../types.js").Frame} Frame */
/** @typedef {import("../types.js").StepAnswer} StepAnswer */

export const COLUMNS = ["Order", "Name", "Kind", "Type", "abs min", "abs max", "Magnitude", "Headroom", "NaN", "Inf", "What"];
const NUMERIC = new Set(["Order", "abs min", "abs max", "Headroom", "NaN", "Inf"]);

/** @param {import("../types.js").PageContext} ctx @param {StepAnswer} answer @param {number} index of the frame @param {number | null} tensor the one to point at */
export function frameRow(ctx, answer, index, tensor) {
  const frame = answer.frames[index];
  const first = index === answer.first_nonfinite;
  const chosen = frame.tensor === tensor;
  const cells = cellsOf(ctx, answer, frame).map((cell, i) => el("td", { "data-column": COLUMNS[i], class: NUMERIC.has(COLUMNS[i]) && "number" }, cell));
  const marks = { "data-state": frame.state, "data-chosen": chosen, "aria-current": chosen && "true", "data-first": first, "data-testid": first && "first-nonfinite" };
  return el("tr", marks, ...cells);
}

/** @param {import("../types.js").PageContext} ctx @param {StepAnswer} answer @param {Frame} frame @returns {import("../dom.js").Child[]} */
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
    frame.what || (frame.state === "value" ? null : stateWord(frame.state)),
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
  if (frame.headroom_bits === null) return muted(stateWord(frame.state));
  return el("span", { class: "heat", "data-heat": heatOf(frame.headroom_bits) }, bits(frame.headroom_bits));
}

/** @param {number | null} n */
const tally = (n) => (n ? el("strong", { class: "bad" }, count(n)) : n === 0 ? muted("0") : muted("not measured"));

/** @param {string} text */
const muted = (text) => el("span", { class: "muted" }, text);
