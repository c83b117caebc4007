// A comparison in words: the layers that have lost most headroom, what either side has, and the way to each.

import { el, link } from "../dom.js";
import { bits, capital, clip, steps } from "../format.js";
import { stateWord } from "../headroom.js";
import { onward, runPath } from "../url_state.js";
import { difference } from "./comparison_model.js";
import { createSortedTable } from "./sorted_table.js";

/** @typedef {import("./comparison_model.js").Loss} Loss */
/** @typedef {Loss & {view: import("../types.js").ViewState}} Row `view`: what its links take along, so that they follow what is shown */

/** @param {number | null} value @param {string} state */
const held = (value, state) => (value === null || state === "nan" || state === "inf" ? stateWord(state) : bits(value));

/** @param {import("../types.js").PageContext} ctx @param {import("./comparison_model.js").Sides} sides */
export function createComparisonTable(ctx, sides) {
  const name = (/** @type {Row} */ loss) => link(runPath(ctx.params.id, "layers", { ...loss.view, tensor: loss.tensor }), { class: "name breaks", title: loss.label }, clip(loss.label));
  const where = (/** @type {Row} */ { start, stop, view }) => {
    const rank = typeof view.rank === "number" ? view.rank : null;
    const text = steps({ start, stop });
    return stop - start === 1 && rank !== null ? link(runPath(ctx.params.id, "step", onward(view, { step: start, rank })), {}, text) : text;
  };
  const columns = [
    { name: "Layer", by: (/** @type {Row} */ loss) => loss.label, show: name },
    { name: "Difference", by: (/** @type {Row} */ loss) => loss.difference_bits, show: change, isNumber: true, help: "Headroom here less that of the other side" },
    { name: capital(sides.here), key: "here", by: (/** @type {Loss} */ loss) => loss.bits, show: (/** @type {Loss} */ loss) => held(loss.bits, loss.state), isNumber: true },
    { name: capital(sides.there), key: "there", by: (/** @type {Loss} */ loss) => loss.other_bits, show: (/** @type {Loss} */ loss) => held(loss.other_bits, loss.other_state), isNumber: true },
    { name: "Types", show: types },
    { name: "Where", by: (/** @type {Loss} */ loss) => loss.start, show: where, isNumber: true },
  ];
  const table = createSortedTable(ctx, columns, { caption: "Greatest loss of headroom first: NaN or Inf on this side alone, then bits", name: "comparison-table" });
  return {
    element: table.element,
    /** @param {readonly Loss[]} losses */
    update: (losses) => table.update(losses.map((loss) => ({ ...loss, view: ctx.state }))),
  };
}

/** @param {Loss} loss */
const change = ({ difference_bits: value }) => el("span", { class: value === null || value < -0.005 ? "is-loss" : null }, value === null ? "NaN or Inf here only" : difference(value));

/** @param {Loss} loss */
const types = ({ dtype, other_dtype: other }) => (dtype === other ? dtype : `${dtype}, there ${other}`);
