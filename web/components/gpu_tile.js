// A card at a glance: whose it is, its state with the reason, and four figures.

import { el, link } from "../dom.js";
import { clip } from "../format.js";
import { glanceFacts, gpuPath, stateOf } from "../gpu_words.js";

/** @typedef {import("../types.js").Gpu} Gpu */

/** Reasons shown on a tile; the card's page has all. */
const MOST_REASONS = 3;

/** @param {string} run @param {Gpu} gpu @param {boolean} hasSiblings whether its rank has other cards: then its number tells them apart @param {import("../types.js").ViewState} state */
export function gpuTile(run, gpu, hasSiblings, state) {
  const index = gpu.device_index === null ? "" : ` cuda:${gpu.device_index}`;
  const title = [gpu.name, gpu.key, ...gpu.why].filter(Boolean).join("\n");
  return el(
    "li",
    { class: "gpu-tile", "data-state": gpu.state, "data-testid": "gpu-tile" },
    link(
      gpuPath(run, gpu, state),
      { title: clip(title, 400), "data-key": `${gpu.rank} ${gpu.key}` },
      el("span", { class: "gpu-tile-head" }, el("strong", {}, `rank ${gpu.rank}`), el("span", { class: "muted gpu-index", "data-needed": hasSiblings }, index), gpuBadge(gpu.state)),
      ...gpu.why.slice(0, MOST_REASONS).map((why) => el("span", { class: "gpu-why" }, clip(why, 120))),
      el("span", { class: "gpu-facts" }, ...glanceFacts(gpu).map(fact)),
    ),
  );
}

/** @param {string} state */
export function gpuBadge(state) {
  const { shape, word } = stateOf(state);
  return el("span", { class: "gpu-badge", "data-state": state }, el("span", { "aria-hidden": "true" }, shape), ` ${word}`);
}

/** @param {{name: string, text: string, share: number | null}} fact */
function fact({ name, text, share }) {
  const bar = el("span", { class: "gpu-bar", "aria-hidden": "true" }, share === null ? null : el("span"));
  if (share === null) bar.dataset.unknown = "";
  else /** @type {HTMLElement} */ (bar.firstChild).style.width = `${Math.round(share * 100)}%`;
  return el("span", { class: "gpu-fact" }, el("span", { class: "muted" }, `${name} `), text, bar);
}
