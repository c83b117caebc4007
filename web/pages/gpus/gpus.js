// The GPUs page: the map of ranks; a tile for each card that is pinned or not well, by host; all others as one line until
// they are asked for.

import * as api from "../../api/client.js";
import { onward, runPath } from "../../api/url_state.js";
import { el, link, replace } from "../../format/dom.js";
import { clip, count, plural } from "../../format/numbers.js";
import { isKnown, quantity } from "../../format/units.js";
import { createNothing } from "../../widgets/detail_cards.js";
import { cardCount, gpuPath, gpuVerdict, hostLine, hostNames, newestSample, noteLines, stateOf } from "../../widgets/gpu/gpu_text.js";
import { createRankMap } from "../../widgets/ranks/rank_map.js";
import { runPage } from "../../widgets/run_page.js";
import { createVerdict } from "../../widgets/verdict.js";

/** @typedef {import("../../types.js").Gpus} Gpus */

const MOST_NOTES = 20;
/** So many cards are all shown; of more those that are pinned or not well, and of these so many. */
const FEW = 16;
const MOST_BAD = 32;
/** More cards than this are drawn closer together: what is well shrinks, what is not stays as it is. */
const DENSE = 48;
const NO_NOTE = "No rank has sent a sample of a card, and none has reported why: on a CPU there is none, and a rank that has just attached sends its first within seconds.";

/** @param {import("../../types.js").PageContext} ctx @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const nothing = createNothing("No GPU is recorded");
  const when = el("p", { class: "muted figure-notes" });
  const notes = el("ul", { class: "source-lines muted" });
  const groups = el("div", { class: "host-groups" });
  const restText = el("span", {});
  const all = el("button", { type: "button", class: "quiet", "aria-expanded": "false", click: toggle });
  const rest = el("p", { class: "gpu-rest", "data-testid": "gpu-rest", hidden: true }, restText, all);
  let showsAll = false;
  /** @type {Gpus | null} */
  let known = null;
  const ranks = createRankMap(ctx, "temperature");
  const element = el("div", {}, verdict.element, nothing.element, when, ranks.element, groups, rest, notes);
  let shown = "";

  /** @param {Gpus} answer */
  function draw(answer) {
    const shown = showsAll ? answer.gpus : chosenCards(answer.gpus, ctx.state.pin);
    const some = shown.length === answer.gpus.length ? answer : { ...answer, gpus: shown, hosts: answer.hosts.filter(({ host }) => shown.some((gpu) => gpu.host === host)) };
    groups.toggleAttribute("data-dense", shown.length > DENSE);
    const focused = groups.querySelector(":focus")?.getAttribute("data-key");
    replace(groups, ...hostNames(some).map((host) => hostPanel(run, host, some, ctx.state)));
    if (focused) /** @type {HTMLElement | null} */ (groups.querySelector(`[data-key="${CSS.escape(focused)}"]`))?.focus();
    const others = answer.gpus.filter((gpu) => !chosenCards(answer.gpus, ctx.state.pin).includes(gpu));
    rest.hidden = others.length === 0;
    restText.textContent = `${restLine(others)} `;
    all.textContent = showsAll ? "Show fewer" : `Show all ${plural(cardCount(answer.gpus), "GPU")}`;
    all.setAttribute("aria-expanded", String(showsAll));
  }

  function toggle() {
    showsAll = !showsAll;
    if (known) draw(known);
  }

  return {
    element,
    async update(about, signal) {
      const [answer] = await Promise.all([api.gpus(run, signal), ranks.update(about, signal)]);
      const isOfNow = answer.gpus.length + answer.hosts.length === 0 || ["live", "hung", "empty"].includes(about.state);
      when.textContent = isOfNow ? "" : `The run is ${about.state}: these are the last samples, not of now.`;
      const { now_ns: _, ...stays } = answer;
      const now = JSON.stringify([stays, onward(ctx.state)]); // its links lead on with the steps
      if (now === shown) return;
      shown = now;
      verdict.update(gpuVerdict(answer, run, ctx.state));
      const lines = noteLines(answer.notes).slice(0, MOST_NOTES).map((line) => clip(line, 300));
      verdict.element.hidden = !answer.gpus.length;
      nothing.update(answer.gpus.length ? null : lines.length ? lines : [NO_NOTE]);
      replace(notes, ...(answer.gpus.length ? lines : []).map((line) => el("li", {}, line)));
      known = answer;
      draw(answer);
    },
    destroy: ranks.destroy,
  };
}

/** Those that are shown one by one, in their order. @param {Gpu[]} gpus the worst first @param {number | null} pin */
function chosenCards(gpus, pin) {
  if (gpus.length <= FEW) return gpus;
  const bad = new Set(gpus.filter(({ state }) => state === "gone" || state === "alarm" || state === "slowed").slice(0, MOST_BAD));
  return gpus.filter((gpu) => bad.has(gpu) || gpu.rank === pin);
}

/** All the others as one. @param {Gpu[]} gpus */
function restLine(gpus) {
  const states = ["gone", "alarm", "slowed", "stale", "ok"].flatMap((state) => {
    const n = cardCount(gpus.filter((gpu) => gpu.state === state));
    return n ? [`${count(n)} ${stateOf(state).label}`] : [];
  });
  const values = [["busy", "utilization_gpu_percent"], ["power", "power_w"], ["chip", "temperature_c"], ["memory", "memory_used_bytes"]].flatMap(([name, column]) => {
    const known = gpus.map(({ values }) => values[column]).filter(isKnown).sort((a, b) => a - b);
    return known.length ? [`${name} ${quantity(column, known[known.length >> 1])}`] : [];
  });
  return `${plural(cardCount(gpus), "other GPU")} (${states.join(", ")})${values.length ? `; median ${values.join(", ")}` : ""}.`;
}

/** @param {string} run @param {string} host @param {Gpus} answer @param {import("../../types.js").ViewState} state */
function hostPanel(run, host, answer, state) {
  const gpus = answer.gpus.filter((gpu) => gpu.host === host);
  const sample = newestSample(answer, host);
  const states = ["gone", "alarm", "slowed", "stale"].flatMap((state) => {
    const n = cardCount(gpus.filter((gpu) => gpu.state === state));
    return n ? [`${n} ${stateOf(state).label}`] : [];
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

export default runPage({
  id: "gpus",
  title: "GPUs",
  key: "g",
  help: "Health of every GPU, by host",
  needsStep: false,
  build,
});

// The summary of a card: whose it is, its state with the reason, and four figures.

/** @typedef {import("../../types.js").Gpu} Gpu */

/** Reasons shown on a tile; the card's page has all. */
const MOST_REASONS = 3;

/** @param {string} run @param {Gpu} gpu @param {boolean} hasSiblings whether its rank has other cards: then each is shown with its number @param {import("../../types.js").ViewState} state */
function gpuTile(run, gpu, hasSiblings, state) {
  const { device_index: index, values: v } = gpu;
  const { shape, label } = stateOf(gpu.state);
  const slowsDownAt = isKnown(v.temperature_c) && isKnown(v.slowdown_margin_c) ? v.temperature_c + v.slowdown_margin_c : null;
  /** Each a name, a unit, the value, and what its bar would be full at. @type {[string, string, number | null | undefined, number | null | undefined][]} */
  const values = [
    ["busy", "_percent", v.utilization_gpu_percent, 100],
    ["power", "_w", v.power_w, v.power_limit_w],
    ["chip", "_c", v.temperature_c, slowsDownAt],
    ["mem", "_bytes", v.memory_used_bytes, v.memory_total_bytes],
  ];
  const details = values.map(([name, unit, value, full]) => {
    const hasBar = isKnown(value) && isKnown(full) && full > 0;
    const bar = el("span", { class: "gpu-bar", "aria-hidden": "true", "data-unknown": !hasBar }, hasBar && el("span"));
    if (hasBar) /** @type {HTMLElement} */ (bar.firstChild).style.width = `${Math.round(100 * Math.max(0, Math.min(1, value / full)))}%`;
    return el("span", { class: "gpu-detail" }, el("span", { class: "muted" }, `${name} `), quantity(unit, value), bar);
  });
  const badge = el("span", { class: "gpu-badge", "data-state": gpu.state }, el("span", { "aria-hidden": "true" }, shape), ` ${label}`);
  const number = el("span", { class: "muted gpu-index", "data-needed": hasSiblings }, index === null ? "" : ` cuda:${index}`);
  return el(
    "li",
    { class: "gpu-tile", "data-state": gpu.state, "data-testid": "gpu-tile" },
    link(
      gpuPath(run, gpu, state),
      { title: clip([gpu.name, gpu.key, ...gpu.why].filter(Boolean).join("\n"), 400), "data-key": `${gpu.rank} ${gpu.key}` },
      el("span", { class: "gpu-tile-head" }, el("strong", {}, `rank ${gpu.rank}`), number, badge),
      ...gpu.why.slice(0, MOST_REASONS).map((why) => el("span", { class: "gpu-why" }, clip(why, 120))),
      el("span", { class: "gpu-details" }, ...details),
    ),
  );
}
