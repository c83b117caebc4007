// The GPUs page: every card as a tile, the worst first, by host; and the hosts.

import * as api from "../../api/client.js";
import { onward, runPath } from "../../api/url_state.js";
import { el, link, replace } from "../../format/dom.js";
import { clip, plural } from "../../format/numbers.js";
import { createNothing } from "../../widgets/detail_cards.js";
import { byHost, cardCount, glanceDetails, gpuPath, gpuVerdict, hostLine, noteLines, stateOf } from "../../widgets/gpu/gpu_text.js";
import { mountRunPage } from "../../widgets/run_page.js";
import { createVerdict } from "../../widgets/verdict.js";

/** @typedef {import("../../types.js").Gpus} Gpus */
/** @typedef {import("../../widgets/gpu/gpu_text.js").HostGroup} HostGroup */

const MOST_NOTES = 20;
/** More cards than this are drawn closer together: what is well shrinks, what is not stays as it is. */
const DENSE = 48;
const NO_NOTE = "No rank has sent a sample of a card, and none has said why: on a CPU there is none, and a rank that has just attached sends its first within seconds.";

/** @param {import("../../types.js").PageContext} ctx @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const nothing = createNothing("No GPU is recorded");
  const when = el("p", { class: "muted figure-notes" });
  const notes = el("ul", { class: "source-lines muted" });
  const groups = el("div", { class: "host-groups" });
  const element = el("div", {}, verdict.element, nothing.element, when, groups, notes);
  let shown = "";

  /** @param {Gpus} answer */
  function show(answer) {
    const { now_ns: _, ...stays } = answer;
    const now = JSON.stringify([stays, onward(ctx.state)]); // its links lead on with the steps
    if (now === shown) return;
    shown = now;
    verdict.update(gpuVerdict(answer, run, ctx.state));
    const lines = noteLines(answer.notes).slice(0, MOST_NOTES).map((line) => clip(line, 300));
    verdict.element.hidden = !answer.gpus.length;
    groups.toggleAttribute("data-dense", answer.gpus.length > DENSE);
    nothing.update(answer.gpus.length ? null : lines.length ? lines : [NO_NOTE]);
    replace(notes, ...(answer.gpus.length ? lines : []).map((line) => el("li", {}, line)));
    const focused = groups.querySelector(":focus")?.getAttribute("data-key");
    replace(groups, ...byHost(answer).map((group) => hostPanel(run, group, ctx.state)));
    if (focused) /** @type {HTMLElement | null} */ (groups.querySelector(`[data-key="${CSS.escape(focused)}"]`))?.focus();
  }

  return {
    element,
    async update(about, signal) {
      const answer = await api.gpus(run, signal);
      show(answer);
      const isOfNow = answer.gpus.length + answer.hosts.length === 0 || about.state === "live" || about.state === "empty";
      when.textContent = isOfNow ? "" : `The run is ${about.state}: these are the last samples, not of now.`;
    },
    destroy() {},
  };
}

/** @param {string} run @param {HostGroup} group @param {import("../../types.js").ViewState} state */
function hostPanel(run, { host, gpus, sample }, state) {
  const states = ["gone", "alarm", "slowed", "stale"].flatMap((state) => {
    const n = cardCount(gpus.filter((gpu) => gpu.state === state));
    return n ? [`${n} ${stateOf(state).word}`] : [];
  });
  const summary = gpus.length ? [plural(cardCount(gpus), "GPU"), ...states].join(", ") : "no GPU";
  const rank = sample?.rank ?? gpus[0]?.rank;
  return el(
    "section",
    { class: "panel host-group", "data-testid": "host-group" },
    el("header", {}, el("h2", { title: host }, clip(host, 80)), el("span", { class: "muted" }, summary), sample && link(runPath(run, "gpu", onward(state, { rank, key: "host" })), { class: "host-link", "data-key": `host ${host}` }, "Host over time")),
    el("p", { class: "muted host-line" }, hostLine(sample)),
    gpus.length > 0 && el("ul", { class: "gpu-tiles" }, ...gpus.map((gpu) => gpuTile(run, gpu, gpus.filter(({ rank }) => rank === gpu.rank).length > 1, state))),
  );
}

/** @type {import("../../types.js").Page} */
export default { id: "gpus", title: "GPUs", path: "/runs/{id}/gpus", mount: (root, ctx) => mountRunPage(root, ctx, "GPUs", () => build(ctx), { needsStep: false }) };

// A card at a glance: whose it is, its state with the reason, and four figures.

/** @typedef {import("../../types.js").Gpu} Gpu */

/** Reasons shown on a tile; the card's page has all. */
const MOST_REASONS = 3;

/** @param {string} run @param {Gpu} gpu @param {boolean} hasSiblings whether its rank has other cards: then its number tells them apart @param {import("../../types.js").ViewState} state */
function gpuTile(run, gpu, hasSiblings, state) {
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
      el("span", { class: "gpu-facts" }, ...glanceDetails(gpu).map(fact)),
    ),
  );
}

/** @param {string} state */
function gpuBadge(state) {
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
