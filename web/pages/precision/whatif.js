// The What if page: which tensors would survive in smaller formats, and which modules to leave as they are.

import * as api from "../../api/client.js";
import { onward, runPath, shownRange } from "../../api/url_state.js";
import { el, link, replace } from "../../format/dom.js";
import { clip, count, plural } from "../../format/numbers.js";
import { percent } from "../../format/units.js";
import { pasteBlock } from "../../widgets/controls/copy_button.js";
import { createKindFilter, createNameFilter, createRankPicker } from "../../widgets/controls/filters.js";
import { createRangeBar } from "../../widgets/controls/range_bar.js";
import { createNothing } from "../../widgets/detail_cards.js";
import { runPage } from "../../widgets/run_page.js";
import { createSortedTable } from "../../widgets/tables/sorted_table.js";
import { createVerdict } from "../../widgets/verdict.js";

/** @typedef {import("../../types.js").WhatIf} WhatIf */
/** @typedef {import("../../types.js").WhatIfFormat} Format */
/** @typedef {import("../../types.js").WhatIfTensor} Tensor */

/** Tensors in the table: with 14 formats each, more would be no table that anybody reads. */
const MOST = 200;
const HINTS = [
  "Each reading takes a sample of whole rows of a tensor and casts it, with the scales that the format would have.",
  "Readings of all shown steps and ranks are added up. A row of the second table leads to its tensor.",
];

/** @param {import("../../types.js").PageContext} ctx @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const nothing = createNothing("No tensor has been read for it");
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const [rank, kinds, name] = [createRankPicker(ctx, { all: true, merged: "added up" }), createKindFilter(ctx), createNameFilter(ctx)];
  const formats = createFormatTable(ctx);
  const kept = el("section", { class: "panel state-panel", "data-testid": "whatif-keep", hidden: true });
  const tensors = el("div", {});
  const filters = el("div", { class: "filters" }, rank.element, kinds.element, name.element, name.problem);
  const element = el("div", {}, verdict.element, nothing.element, range.element, filters, name.help, formats.element, kept, tensors);
  /** @type {ReturnType<typeof createTensorTable> | null} */
  let table = null;

  /** @param {WhatIf} answer */
  function show(answer) {
    const isEmpty = answer.measured === 0;
    nothing.update(isEmpty ? whyNothing(answer) : null);
    const { start, stop, last, rank: chosen, kinds: kind, q } = ctx.state;
    const isNarrowed = start !== null || stop !== null || last !== null || chosen !== null || kind.length > 0 || q !== "";
    for (const control of [range.element, filters, name.help]) control.hidden = isEmpty && !isNarrowed; // nothing to choose from
    verdict.element.hidden = isEmpty;
    if (!isEmpty) verdict.update(whatifVerdict(answer));
    formats.update(isEmpty ? [] : answer.formats.map((format) => ({ ...format, of: answer.tensors.length })));
    table ??= createTensorTable(ctx, answer.formats);
    if (!table.element.isConnected) replace(tensors, table.element);
    table.update(answer.tensors.map((tensor) => ({ ...tensor, view: onward(ctx.state) })));
    showKept(answer.formats.find((format) => format.name === ctx.state.key));
  }

  /** @param {Format | undefined} format */
  function showKept(format) {
    kept.hidden = !format;
    if (!format) return;
    const title = format.module_count ? `Keep ${plural(format.module_count, "module")} out of ${format.title}` : `Nothing to keep out of ${format.title}`;
    const names = format.modules.map((one) => one || "(model)").join(", ");
    replace(kept, el("h2", {}, title), el("p", { class: "muted" }, clip(names, 1000)), ...(format.code ? [pasteBlock(format.code, "What leaves these modules in bfloat16, with torchao")] : []));
  }

  return {
    element,
    async update(about, signal) {
      range.update(about);
      rank.update(about.ranks.map((one) => one.rank), ctx.state.rank);
      kinds.update(about.kinds);
      name.update();
      const { kinds: kind, q } = ctx.state;
      show(await api.whatif(run, { ...shownRange(ctx.state, about), kind, q, rank: ctx.state.rank ?? "all", limit: MOST }, signal));
    },
    destroy: name.destroy,
  };
}

/** @param {WhatIf} answer @returns {(string | Node)[]} */
function whyNothing(answer) {
  if (answer.of === 0) return ["No tensor has this name and kind."];
  return [
    "What would be left of a tensor in FP8, MXFP8, MXFP6, MXFP4 or NVFP4 is measured when asked for, of tensors in host memory. Ask a live run:",
    pasteBlock(`rangewatch whatif ${location.pathname.split("/")[2]} --read`, "The command that asks"),
    "Or have each tensor read again and again while it trains:",
    pasteBlock("rangewatch.attach(model, optimizer, whatif_every=1000)", "The line that attaches"),
  ];
}

/** Formats named in a sentence; the table has all. */
const MOST_NAMED = 4;

/** In how many formats all survive, and which they do not survive in. @param {WhatIf} answer @returns {import("../../types.js").Verdict} */
export function whatifVerdict(answer) {
  const of = answer.tensors.length;
  const whole = answer.formats.filter((format) => format.survive === of);
  const others = answer.formats.filter((format) => format.survive < of).sort((a, b) => a.survive - b.survive);
  const named = others.slice(0, MOST_NAMED).map(({ title, survive }) => `${title} (${count(survive)} do)`).join(", ");
  const { flushed_fraction: flushed, saturated_fraction: saturated, sqnr_db: sqnr } = answer.limits;
  const lead = whole.length ? `${of === 1 ? "The tensor survives" : `All ${plural(of, "tensor")} survive`} in ${others.length ? `${count(whole.length)} of ${plural(answer.formats.length, "format")}` : "every format"}.` : `In no smaller format do all ${plural(of, "tensor")} survive.`;
  const lost = others.length ? ` Not all survive in ${named}${others.length > MOST_NAMED ? ` and ${count(others.length - MOST_NAMED)} more` : ""}.` : "";
  const limits = `To survive, at most ${percent(flushed)} of a tensor becomes zero, at most ${percent(saturated)} saturates, and the signal is ${sqnr} dB or more over the error.`;
  const unread = answer.measured < answer.of ? ` ${count(answer.of - answer.measured)} of ${count(answer.of)} tensors were not read.` : "";
  return { level: whole.length ? "ok" : "empty", parts: [["strong", lead], ["text", `${lost} ${limits}${unread}`]], links: [] };
}

/** @param {import("../../types.js").PageContext} ctx */
function createFormatTable(ctx) {
  /** @typedef {Format & {of: number}} Row */
  const pick = (/** @type {Row} */ { name, title }) => el("button", { type: "button", class: "quiet", "aria-pressed": String(ctx.state.key === name), click: () => ctx.setState({ key: ctx.state.key === name ? "" : name }) }, title);
  return createSortedTable(
    ctx,
    [
      { name: "Format", show: pick },
      { name: "Survive", by: (row) => row.survive, show: (row) => `${count(row.survive)} of ${count(row.of)}`, isNumber: true, help: "Tensors within the limits above" },
      { name: "Least SQNR", by: (row) => row.least_sqnr_db, show: (row) => decibels(row.least_sqnr_db), isNumber: true, help: "Signal over quantization error of the worst tensor" },
      { name: "Modules to keep", by: (row) => row.module_count, show: (row) => count(row.module_count), isNumber: true, help: "Modules with a tensor that does not survive: choose the format for their names" },
    ],
    { caption: "Formats, and how many tensors survive in each", name: "whatif-formats" },
  );
}

/** @param {import("../../types.js").PageContext} ctx @param {readonly Format[]} formats */
function createTensorTable(ctx, formats) {
  /** @typedef {Tensor & {view: ReturnType<typeof onward>}} Row */
  const cell = (/** @type {Row} */ row, /** @type {Format} */ { name, title }) => {
    const value = row.formats[name];
    const scales = value.scale_log2 === null ? "" : `, scales 2^${value.scale_log2.toFixed(1)} ± ${(value.scale_spread_bits ?? 0).toFixed(1)} bits`;
    const detail = `${title}: ${percent(value.flushed_fraction)} to zero, ${percent(value.saturated_fraction)} saturated, relative error ${percent(value.relative_error)}${scales}`;
    return el("span", { class: value.survives ? "survives" : "survives-not", title: detail }, value.survives ? "" : "✕ ", decibels(value.sqnr_db));
  };
  return createSortedTable(
    ctx,
    [
      { name: "Tensor", show: (/** @type {Row} */ row) => link(runPath(ctx.params.id, "tensor", { ...row.view, tensor: row.tensor }), { class: "name breaks", title: row.label }, clip(row.label)) },
      ...formats.map((format) => ({ name: format.title, by: (/** @type {Row} */ row) => row.formats[format.name].sqnr_db, show: (/** @type {Row} */ row) => cell(row, format), isNumber: true })),
    ],
    { caption: "Signal over error of each tensor in call order; ✕ does not survive", name: "whatif-tensors", most: MOST },
  );
}

/** @param {number | null} value */
const decibels = (value) => (value === null ? "exact" : `${value.toFixed(1)} dB`);

export default runPage({
  id: "whatif",
  title: "What if",
  key: "w",
  help: "Which tensors would survive in FP8, MXFP8, MXFP6, MXFP4 or NVFP4",
  build,
});
