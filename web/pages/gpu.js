// GPU: one card, or one host, over the steps, with what its rank did meanwhile; or over the time.

import * as api from "../api.js";
import { createCardLanes } from "../components/card_lanes.js";
import { createNothing } from "../components/fact_cards.js";
import { aboutList, cardVerdict, createEventTable, hostVerdict, valueList } from "../components/gpu_facts.js";
import { createRangeBar } from "../components/range_bar.js";
import { mountRunPage } from "../components/run_page.js";
import { createVerdict } from "../components/verdict.js";
import { el, link, replace } from "../dom.js";
import { clip } from "../format.js";
import { noteLines, stateOf } from "../gpu_words.js";
import { isLongInOneStep, timesOf } from "../gpu_series.js";
import { onward, runPath, shownRange } from "../url_state.js";

/** @typedef {import("../types.js").Gpus} Gpus */
/** @typedef {import("../types.js").Gpu} Gpu */
/** @typedef {import("../types.js").HostSample} HostSample */
/** @typedef {{rank: number, key: string, gpu: Gpu | null, host: HostSample | null}} Chosen */

/** What the address calls the host of a rank. */
const HOST = "host";
/** Samples asked for; more would be narrower than pixels. */
const COLUMNS = 800;

/** How the address says that the time axis is shown in full. */
const ALL_TIMES = Object.freeze({ from: null, to: null });

const HINTS = [
  "Samples are taken once a second and stand at the step that was open then; several within one step lie side by side.",
  "Dotted lines are limits. Drag over a lane to see fewer steps, double click to see all.",
  "A step that lasts for minutes is one column: the time axis shows what happened in it. It is chosen by itself where the last step is such a one.",
  "Times are those of the clock of the rank's host, shown in your time zone.",
];

/** @param {import("../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../components/run_page.js").RunView} */
function build(ctx, refetch) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const nothing = createNothing("No sample of this rank's GPU or host");
  const select = el("select", { "aria-label": "GPU", change: () => ctx.setState(addressOf(select.value)) });
  const about = el("section", { class: "panel facts-panel" });
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const axis = el("select", { "aria-label": "Axis", change: () => ctx.setState({ axis: axis.value === "time" ? "time" : "steps", ...ALL_TIMES }) }, el("option", { value: "steps" }, "steps"), el("option", { value: "time" }, "time"));
  const lanes = createCardLanes(ctx, refetch, (span) => ctx.setState(timesPatch(span)));
  const events = createEventTable(ctx);
  const all = link(runPath(run, "gpus"), {}, "All GPUs");
  const values = el("div", {});
  const newest = el("details", { class: "panel report", "data-testid": "gpu-values" }, el("summary", {}, "All newest values"), values);
  const some = el("div", {}, el("div", { class: "filters" }, el("label", { class: "field" }, "GPU ", select), el("label", { class: "field" }, "Axis ", axis), all), about, range.element, lanes.element, el("div", { class: "lanes" }, events.element, newest));
  const element = el("div", {}, verdict.element, nothing.element, some);

  /** @param {Gpus} found @param {Chosen} chosen */
  function show(found, { gpu, host }) {
    verdict.update(gpu ? cardVerdict(gpu) : hostVerdict(/** @type {HostSample} */ (host)));
    const sample = /** @type {Gpu | HostSample} */ (gpu ?? host);
    fill(select, found, `${sample.rank} ${gpu ? gpu.key : HOST}`);
    replace(about, aboutList(sample.about, sample.host));
    replace(values, valueList(sample.values, sample.about));
  }

  return {
    element,
    async update(answer, signal) {
      const found = await api.gpus(run, signal);
      const { state } = ctx;
      const chosen = choose(found, state);
      nothing.update(chosen ? null : whyNothing(found, state.rank));
      verdict.element.hidden = some.hidden = !chosen;
      if (!chosen) return;
      if (state.rank !== chosen.rank || state.key !== chosen.key) return ctx.setState({ rank: chosen.rank, key: chosen.key }, { replace: true });
      show(found, chosen);
      all.setAttribute("href", runPath(run, "gpus", onward(state)));
      range.update(answer);
      const view = { run: answer, state, range: shownRange(state, answer) };
      const key = chosen.gpu ? chosen.key : "";
      const ofSteps = await samplesOf(run, chosen.rank, key, state, view.range, signal);
      const byTime = state.axis ? state.axis === "time" : isLongInOneStep(ofSteps);
      axis.value = byTime ? "time" : "steps";
      const span = byTime ? spanOf(state) : null;
      const samples = span ? await api.gpuLanes(run, chosen.rank, { key, columns: COLUMNS, ...span }, signal) : ofSteps;
      events.update(samples.events);
      await lanes.update(samples, found.throttle_reasons ?? {}, view, byTime, signal);
    },
    destroy() {
      lanes.destroy();
    },
  };
}

/** The samples of the shown steps: all of them first, since steps are found by them, then those in between more finely. @param {string} run @param {number} rank @param {string} key @param {import("../types.js").ViewState} state @param {import("../types.js").StepRange} range @param {AbortSignal} signal */
async function samplesOf(run, rank, key, state, range, signal) {
  const whole = await api.gpuLanes(run, rank, { key, columns: COLUMNS }, signal);
  const times = state.start === null && state.stop === null && state.last === null ? null : timesOf(whole, range);
  return times ? api.gpuLanes(run, rank, { key, columns: COLUMNS, ...times }, signal) : whole;
}

/** The card asked for, else the worst of the rank, else of all, else the host. @param {Gpus} all @param {import("../types.js").ViewState} state @returns {Chosen | null} */
export function choose({ gpus, hosts }, { rank, key }) {
  const mine = (/** @type {{rank: number}} */ one) => rank === null || rank === "all" || one.rank === rank;
  const host = hosts.find(mine);
  const asHost = host ? { rank: host.rank, key: HOST, gpu: null, host } : null;
  if (key === HOST && asHost) return asHost;
  const gpu = gpus.find((one) => mine(one) && one.key === key) ?? gpus.find(mine);
  return gpu ? { rank: gpu.rank, key: gpu.key, gpu, host: null } : asHost;
}

/** @param {Gpus} all @param {number | "all" | null} rank */
function whyNothing({ notes }, rank) {
  const mine = notes.filter((note) => typeof rank !== "number" || note.rank === rank);
  return mine.length ? noteLines(mine).map((line) => clip(line, 300)) : ["No sample has come. A rank sends its first within seconds of attaching; on a machine without NVIDIA cards there are those of the host only."];
}

/** How the address says which part of the time axis is shown: milliseconds, as nanoseconds are more than a number here holds. @param {{start_ns: number, stop_ns: number} | null} span null: all */
export function timesPatch(span) {
  return span ? { axis: /** @type {const} */ ("time"), from: Math.floor(span.start_ns / 1e6), to: Math.ceil(span.stop_ns / 1e6) } : ALL_TIMES;
}

/** @param {Pick<import("../types.js").ViewState, "from" | "to">} state */
export const spanOf = ({ from, to }) => (from === null || to === null ? null : { start_ns: from * 1e6, stop_ns: to * 1e6 });

/** Another card has samples of its own times. @param {string} value "3 GPU-..." */
function addressOf(value) {
  const [rank, ...key] = value.split(" ");
  return { rank: Number(rank), key: key.join(" "), ...ALL_TIMES };
}

/** @param {HTMLSelectElement} select @param {Gpus} all @param {string} chosen */
function fill(select, { gpus, hosts }, chosen) {
  const cards = gpus.map(({ rank, key, device_index: index, state }) => [`${rank} ${key}`, `rank ${rank}${index === null ? "" : `, cuda:${index}`}: ${stateOf(state).word}`]);
  const machines = hosts.map(({ rank, host }) => [`${rank} ${HOST}`, `host ${clip(host, 40)} (rank ${rank})`]);
  const now = JSON.stringify([cards, machines]);
  if (select.dataset.shown !== now && document.activeElement !== select) {
    select.dataset.shown = now;
    replace(select, ...[...cards, ...machines].map(([value, text]) => el("option", { value }, text)));
  }
  select.value = chosen;
}

/** @type {import("../types.js").Page} */
export default {
  id: "gpu",
  title: "GPU",
  path: "/runs/{id}/gpu",
  under: "gpus",
  isListed: () => false,
  mount: (root, ctx) => mountRunPage(root, ctx, "GPU", (refetch) => build(ctx, refetch), { needsStep: false }),
};
