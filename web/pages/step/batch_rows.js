// Which rows of the data a step was made of, and those with the largest losses, to read and to copy.

import { el, replace } from "../../format/dom.js";
import { clip, count, reading } from "../../format/numbers.js";
import { copyButton } from "../../widgets/controls/copy_button.js";

/** @typedef {import("../../types.js").BatchRows} BatchRows */

const SHOWN = 64;

/** All ids that are known, a line each. @param {BatchRows} batch */
export const idLines = (batch) => (batch.ids ?? []).join("\n");

/** @param {BatchRows} batch */
export function rowsText({ ids = [], count: all = 0, microbatches = 1 }) {
  if (!ids.length) return "Their ids are not known: rangewatch.batch was called without.";
  const shown = ids.slice(0, SHOWN).map((id) => clip(String(id)));
  const rest = Math.max(all, ids.length) - shown.length;
  const parts = microbatches > 1 ? ` in ${count(microbatches)} microbatches` : "";
  return `${count(Math.max(all, ids.length))} rows${parts}: ${shown.join(", ")}${rest > 0 ? ` and ${count(rest)} more` : ""}`;
}

/** @param {number | string} loss @param {number | null | undefined} median */
export function lossText(loss, median) {
  if (typeof loss === "string") return loss;
  return median && median > 0 ? `${reading(loss)}, ${reading(loss / median)} times the median` : reading(loss);
}

/** A panel, hidden where nothing is known. */
export function createBatchRows() {
  const body = el("div");
  const element = el("section", { class: "panel", "data-testid": "batch-rows", hidden: true }, el("h2", {}, "Rows of this batch"), body);
  return {
    element,
    /** @param {BatchRows | null | undefined} batch */
    update(batch) {
      element.hidden = !batch;
      if (!batch) return;
      const largest = (batch.largest ?? []).map(({ row, loss }) => el("div", {}, el("dt", {}, `Row ${clip(String(row))}`), el("dd", {}, lossText(loss, batch.median))));
      replace(
        body,
        el("p", {}, rowsText(batch)),
        batch.ids?.length ? copyButton(() => idLines(batch), "Copy the ids") : null,
        largest.length ? el("h3", {}, "Largest losses") : null,
        largest.length ? el("dl", { class: "details-list" }, ...largest) : null,
      );
    },
  };
}
