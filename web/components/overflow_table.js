// The layers by how often they overflowed when the loss scale dropped, each with its largest finite magnitude.

import { el, link } from "../dom.js";
import { clip, count, magnitude } from "../format.js";
import { onward, runPath } from "../url_state.js";
import { createSortedTable } from "./sorted_table.js";

/** @typedef {import("../loss_scale_words.js").OverflowLayer} Layer */
/** @typedef {Layer & {view: ReturnType<typeof onward>}} Row `view`: what its links take along, so that they follow the shown steps */

/** Of the limit of its type a magnitude is, in words. @param {Layer} layer */
function ofLimit({ amax, max_finite: limit }) {
  return amax === null || !limit ? "not known" : `${Number(((100 * amax) / limit).toPrecision(2))} %`;
}

/** @param {import("../types.js").PageContext} ctx */
export function createOverflowTable(ctx) {
  const { id } = ctx.params;
  const table = createSortedTable(
    ctx,
    [
      { name: "Tensor", by: (/** @type {Row} */ layer) => layer.label, show: (layer) => link(runPath(id, "tensor", { ...layer.view, tensor: layer.tensor }), { class: "name breaks", title: layer.label }, clip(layer.label)) },
      { name: "Overflowed", by: (layer) => layer.overflows, show: (layer) => count(layer.overflows), isNumber: true, help: "Drops at which it held NaN or Inf" },
      { name: "Was first", by: (layer) => layer.first, show: (layer) => count(layer.first), isNumber: true, help: "Drops at which no other tensor had NaN or Inf before it" },
      { name: "Largest finite", by: (layer) => layer.amax, show: (layer) => magnitude(layer.amax), isNumber: true, help: "Largest finite magnitude in these steps, as the hardware held it: multiplied by the loss scale" },
      { name: "Of its type's limit", by: (layer) => (layer.amax === null || !layer.max_finite ? null : layer.amax / layer.max_finite), show: ofLimit, isNumber: true, help: "Of the largest finite number of the type it is kept in" },
      { name: "Type", by: (layer) => layer.dtype, show: (layer) => el("span", {}, clip(layer.dtype, 30)) },
      { name: "Last time", by: (layer) => layer.last_step, show: (layer) => link(runPath(id, "step", { ...layer.view, step: layer.last_step, tensor: layer.tensor }), {}, `step ${count(layer.last_step)}`), isNumber: true },
    ],
    { caption: "Layers by overflows", name: "overflow-table", sortBy: "Overflowed" },
  );
  return {
    element: table.element,
    /** @param {readonly Layer[]} layers */
    update: (layers) => table.update(layers.map((layer) => ({ ...layer, view: onward(ctx.state) }))),
  };
}
