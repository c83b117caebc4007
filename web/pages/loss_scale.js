// Loss scale: its line, every drop with its cause, and the layers that overflow.

import * as api from "../api.js";
import { createDropsTable } from "../components/drops_table.js";
import { createFactCards, createNothing } from "../components/fact_cards.js";
import { createLaneGroup } from "../components/lane_group.js";
import { LANES } from "../components/lane_specs.js";
import { createOverflowTable } from "../components/overflow_table.js";
import { createRangeBar } from "../components/range_bar.js";
import { mountRunPage } from "../components/run_page.js";
import { createScaleLanes } from "../components/series_lanes.js";
import { createVerdict } from "../components/verdict.js";
import { el } from "../dom.js";
import { count } from "../format.js";
import { PAGE_DROPS, cleanWords, scaleCards, scaleVerdict } from "../loss_scale_words.js";
import { pasteBlock } from "../components/copy_button.js";
import { runPath, shownRange } from "../url_state.js";

/** @typedef {import("../loss_scale_words.js").LossScale} LossScale */

const HEIGHT = 150;
/** How the URL's key says which page of drops is shown: those before a step. */
const BEFORE = "before:";
const HINTS = [
  "A scaler multiplies the loss, so that small gradients do not vanish in float16, and lowers the scale when a gradient overflows: it skips that step.",
  "Red ticks on the axis are skipped steps. Drag over the lane to see fewer steps, double click to see all.",
  "A drop's step opens its frames on the rank that was first.",
];

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../components/run_page.js").RunView} */
function build(ctx, refetch) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const cards = createFactCards();
  const nothing = createNothing("No loss scale is known");
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const further = createScaleLanes();
  const group = createLaneGroup(ctx, [{ spec: { ...LANES.loss_scale, plotHeight: () => HEIGHT } }, ...further.map(({ entry }) => entry)], refetch);
  further.forEach((lane, i) => lane.attach(group.lanes[i + 1]));
  const drops = createDropsTable(ctx);
  const clean = el("section", { class: "panel state-panel", "data-testid": "no-drop", hidden: true }, el("h2", {}, "The scale has not dropped in these steps"));
  const cleanText = el("p");
  clean.append(cleanText);
  const layers = createOverflowTable(ctx);
  const made = el("p", { class: "muted figure-notes" });
  const some = el("div", { class: "loss-scale" }, cards.element, range.element, group.element, clean, drops.element, layers.element, made);
  const element = el("div", {}, verdict.element, nothing.element);

  /** @param {LossScale} answer of all shown steps @param {LossScale} page of the drops that are listed @param {boolean} isNewest whether they reach the last step of the run */
  function show(answer, page, isNewest) {
    const isEmpty = !answer.scalers.length;
    nothing.update(isEmpty ? whyNothing() : null);
    verdict.element.hidden = isEmpty;
    if (isEmpty) return;
    if (!some.isConnected) element.append(some); // figures are there only where they are drawn
    verdict.update(scaleVerdict(answer, run, { state: ctx.state, isNewest }));
    cards.update(scaleCards(answer));
    clean.hidden = answer.drops.length > 0;
    cleanText.textContent = cleanWords(answer, isNewest);
    const at = (/** @type {string} */ key) => runPath(run, "loss-scale", { ...ctx.state, key });
    drops.update(page.drops, { older: page.next === null ? null : at(`${BEFORE}${page.next}`), newest: beforeOf(ctx.state.key) === null ? null : at("") });
    layers.update(answer.layers);
    made.textContent = madeOf(answer);
  }

  return {
    element,
    async update(about, signal) {
      range.update(about);
      const steps = shownRange(ctx.state, about);
      const before = beforeOf(ctx.state.key);
      const [answer, page] = await Promise.all([
        api.lossScale(run, { ...steps, limit: PAGE_DROPS }, signal),
        before === null ? null : api.lossScale(run, { ...steps, stop: Math.max(steps.start, Math.min(before, steps.stop)), limit: PAGE_DROPS }, signal),
      ]);
      show(answer, page ?? answer, answer.stop > (about.last_step ?? -1));
      if (answer.scalers.length) await group.update({ run: about, state: ctx.state, range: steps }, signal);
    },
    destroy: group.destroy,
  };
}

/** The step that the listed drops come before; null: the newest. @param {string} key */
function beforeOf(key) {
  const step = key.startsWith(BEFORE) ? key.slice(BEFORE.length) : "";
  return /^\d{1,15}$/.test(step) ? Number(step) : null;
}

/** Of how many drops the table of layers tells. @param {LossScale} answer */
function madeOf({ layers, layers_of_drops: looked }) {
  return layers.length ? `Made of ${looked === 1 ? "1 drop" : `${count(looked)} drops`}: the newest and the oldest of these steps, at most 50 of each.` : "";
}

const SCALER = "rangewatch.attach(model, optimizer, scaler=scaler)";

/** @returns {(string | Node)[]} */
function whyNothing() {
  return [
    "No scaler has told its scale in this run. Training in bfloat16 or float32 needs none. With torch.amp.GradScaler, or the one of a framework, give it to attach:",
    pasteBlock(SCALER, "The line that attaches with a scaler"),
    "DeepSpeed, Lightning, Accelerate and the Trainer have theirs found by their integrations.",
  ];
}

/** @type {import("../types.js").Page} */
export default { id: "loss-scale", title: "Loss scale", path: "/runs/{id}/loss-scale", mount: (root, ctx) => mountRunPage(root, ctx, "Loss scale", (refetch) => build(ctx, refetch)) };
