// The GPU page: one card or host over the steps or over time, with its rank's step time, its details and its events.

import * as api from "../../api/client.js";
import { onward, runPath, shownRange } from "../../api/url_state.js";
import { zoneName } from "../../charts/frame.js";
import { createLaneGroup, createTimeLanes } from "../../charts/lanes/lane_group.js";
import { LANES } from "../../charts/lanes/lane_specs.js";
import { createLegend } from "../../charts/legend.js";
import { el, link, replace } from "../../format/dom.js";
import { clip, count, rankName } from "../../format/numbers.js";
import { UNKNOWN, columnName, isKnown } from "../../format/units.js";
import { createNothing } from "../../widgets/detail_cards.js";
import { EVENTS, GPU_LANES, HOST_LANES, THROTTLE, eventModel, lineSpec, readLineLane, throttleModel } from "../../widgets/gpu/gpu_lanes.js";
import { isLongInOneStep, onTime, rangeOf, timesOf } from "../../widgets/gpu/gpu_samples.js";
import { named, noteLines, stateOf } from "../../widgets/gpu/gpu_text.js";
import { createRangeBar } from "../../widgets/controls/range_bar.js";
import { runPage } from "../../widgets/run_page.js";
import { createSortedTable } from "../../widgets/tables/sorted_table.js";
import { createVerdict } from "../../widgets/verdict.js";

/** @typedef {import("../../types.js").Gpus} Gpus */
/** @typedef {import("../../types.js").Gpu} Gpu */
/** @typedef {import("../../types.js").HostSample} HostSample */
/** @typedef {{rank: number, key: string, gpu: Gpu | null, host: HostSample | null}} Chosen */

/** What the address calls the host of a rank. */
const HOST = "host";
/** Samples asked for; more would be narrower than pixels. */
const COLUMNS = 800;

/** How the URL states that the time axis is shown in full. */
const ALL_TIMES = Object.freeze({ from: null, to: null });

const HINTS = [
  "Samples are taken once a second and shown at the step of that moment; several within one step are side by side.",
  "Dotted lines are limits. Drag over a lane to see fewer steps, double click to see all.",
  "A step that lasts for minutes is one column: the time axis shows what happened in it. It is chosen by itself where the last step is such a one.",
  "Times are those of the clock of the rank's host, shown in your time zone.",
];

/** @param {import("../../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx, refetch) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const nothing = createNothing("No sample of this rank's GPU or host");
  const select = el("select", { "aria-label": "GPU", change: () => ctx.setState(addressOf(select.value)) });
  const about = el("section", { class: "panel details-panel" });
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))));
  const axis = el("select", { "aria-label": "Axis", change: () => ctx.setState({ axis: axis.value === "time" ? "time" : "steps", ...ALL_TIMES }) }, el("option", { value: "steps" }, "steps"), el("option", { value: "time" }, "time"));
  const lanes = createCardLanes(ctx, refetch, (span) => ctx.setState(timesPatch(span)));
  const events = createEventTable(ctx);
  const all = link(runPath(run, "gpus"), {}, "All GPUs");
  const values = el("div", {});
  const newest = el("details", { class: "panel report", "data-testid": "gpu-values" }, el("summary", {}, "All newest values"), values);
  const some = el("div", {}, el("div", { class: "filters" }, el("label", { class: "field" }, "GPU ", select), el("label", { class: "field" }, "Axis ", axis), all), about, range.element, lanes.element, el("div", { class: "lanes" }, events.element, newest));
  const element = el("div", {}, verdict.element, nothing.element, some);

  /** @param {Gpus} all @param {Chosen} chosen */
  function show(all, { gpu, host }) {
    verdict.update(gpu ? cardVerdict(gpu) : hostVerdict(/** @type {HostSample} */ (host)));
    const sample = /** @type {Gpu | HostSample} */ (gpu ?? host);
    fill(select, all, `${sample.rank} ${gpu ? gpu.key : HOST}`);
    replace(about, aboutList(sample.about, sample.host));
    replace(values, valueList(sample.values, sample.about));
  }

  return {
    element,
    async update(answer, signal) {
      const cards = await api.gpus(run, signal);
      const { state } = ctx;
      const chosen = choose(cards, state);
      nothing.update(chosen ? null : whyNothing(cards, state.rank));
      verdict.element.hidden = some.hidden = !chosen;
      if (!chosen) return;
      if (state.rank !== chosen.rank || state.key !== chosen.key) return ctx.setState({ rank: chosen.rank, key: chosen.key }, { replace: true });
      show(cards, chosen);
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
      await lanes.update(samples, cards.throttle_reasons ?? {}, view, byTime, signal);
    },
    destroy() {
      lanes.destroy();
    },
  };
}

/** The samples of the shown steps: all of them first, since they place the steps, then those in between more finely. @param {string} run @param {number} rank @param {string} key @param {import("../../types.js").ViewState} state @param {import("../../types.js").StepRange} range @param {AbortSignal} signal */
async function samplesOf(run, rank, key, state, range, signal) {
  const whole = await api.gpuLanes(run, rank, { key, columns: COLUMNS }, signal);
  const times = state.start === null && state.stop === null && state.last === null ? null : timesOf(whole, range);
  return times ? api.gpuLanes(run, rank, { key, columns: COLUMNS, ...times }, signal) : whole;
}

/** The card asked for, else the worst of the rank, else of all, else the host. @param {Gpus} all @param {import("../../types.js").ViewState} state @returns {Chosen | null} */
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

/** How the URL states which part of the time axis is shown: milliseconds, as nanoseconds are more than a number here holds. @param {{start_ns: number, stop_ns: number} | null} span null: all */
export function timesPatch(span) {
  return span ? { axis: /** @type {const} */ ("time"), from: Math.floor(span.start_ns / 1e6), to: Math.ceil(span.stop_ns / 1e6) } : ALL_TIMES;
}

/** @param {Pick<import("../../types.js").ViewState, "from" | "to">} state */
export const spanOf = ({ from, to }) => (from === null || to === null ? null : { start_ns: from * 1e6, stop_ns: to * 1e6 });

/** Another card has samples of its own times. @param {string} value "3 GPU-..." */
function addressOf(value) {
  const [rank, ...key] = value.split(" ");
  return { rank: Number(rank), key: key.join(" "), ...ALL_TIMES };
}

/** @param {HTMLSelectElement} select @param {Gpus} all @param {string} chosen */
function fill(select, { gpus, hosts }, chosen) {
  const cards = gpus.map(({ rank, key, device_index: index, state }) => [`${rank} ${key}`, `rank ${rank}${index === null ? "" : `, cuda:${index}`}: ${stateOf(state).label}`]);
  const machines = hosts.map(({ rank, host }) => [`${rank} ${HOST}`, `host ${clip(host, 40)} (rank ${rank})`]);
  const now = JSON.stringify([cards, machines]);
  if (select.dataset.shown !== now && document.activeElement !== select) {
    select.dataset.shown = now;
    replace(select, ...[...cards, ...machines].map(([value, text]) => el("option", { value }, text)));
  }
  select.value = chosen;
}

export default runPage({
  id: "gpu",
  title: "GPU",
  under: "gpus",
  needsStep: false,
  build,
});

// The lanes of one card or host on the step axis, with its rank's step time and least headroom beneath; or on the time axis.

/** @typedef {import("../../types.js").GpuLanes} GpuLanes */
/** @typedef {import("../../charts/lanes/lane_group.js").LaneEntry} LaneEntry */

const NOT_REPORTED = "n/a: this card does not report why its clocks are held back.";
const ONLY_STEPS = "Step time and headroom of the rank are on the step axis.";
/** @param {number} origin_ns */
const zoneNote = (origin_ns) => `Times of the time zone ${zoneName(0, origin_ns)}. ${ONLY_STEPS}`;

/**
 * @param {import("../../types.js").PageContext} ctx @param {() => void} refetch
 * @param {(span: {start_ns: number, stop_ns: number} | null) => void} zoomed on the time axis
 */
function createCardLanes(ctx, refetch, zoomed) {
  const element = el("div", {});
  /** @type {Pick<ReturnType<typeof createLaneGroup>, "element" | "update" | "destroy"> | null} */
  let group = null;
  const legend = createLegend();
  let isHost = false;
  let isByTime = false;
  /** @type {import("../../widgets/gpu/gpu_samples.js").PlacedLanes} */
  let lanes = { rank: 0, key: "", about: {}, times_ns: [], steps: [], values: {}, merge: {}, events: [] };
  /** @type {Record<string, string>} */
  let reasons = {};

  /** A click on a lane is of this rank too. */
  const query = () => ({ rank: lanes.rank });

  /** @param {import("../../widgets/gpu/gpu_lanes.js").LineLane} lane @returns {LaneEntry} */
  const lineEntry = (lane) => ({ spec: lineSpec(lane), options: { query, load: async () => readLineLane(lane, lanes) } });

  /** @param {import("../../charts/lanes/lane_specs.js").LaneSpec} spec @param {() => import("../../types.js").BandModel} read @returns {LaneEntry} */
  const bandEntry = (spec, read) => ({ spec, options: { query, load: async () => read() } });

  function cardEntries() {
    const throttle = { ...THROTTLE };
    const readThrottle = () => {
      const model = throttleModel(lanes, reasons);
      throttle.empty = model.isKnown ? THROTTLE.empty : NOT_REPORTED;
      return model;
    };
    return [...GPU_LANES.map(lineEntry), bandEntry(throttle, readThrottle), bandEntry({ ...EVENTS }, () => eventModel(lanes))];
  }

  const mine = () => (isHost ? HOST_LANES.map(lineEntry) : cardEntries());

  /** What the server draws of the rank stands on the step axis only. @returns {LaneEntry[]} */
  function ofRank() {
    const of = (/** @type {string} */ title) => () => `${title}, ${rankName(lanes.rank)}`;
    return [{ spec: LANES.step_time, options: { query, title: of("Step time") } }, { spec: LANES.timeline, options: { query, title: of("Least headroom") } }];
  }

  function rebuild() {
    group?.destroy();
    const timed = () => /** @type {import("../../charts/lanes/lane_group.js").TimedLanes} */ (lanes);
    group = isByTime ? createTimeLanes(ctx, mine(), timed, zoomed) : createLaneGroup(ctx, [...mine(), ...ofRank()], refetch);
    replace(element, group.element, isByTime ? el("p", { class: "muted figure-notes" }, zoneNote(lanes.origin_ns ?? 0)) : legend.element);
    return group;
  }

  return {
    element,
    /**
     * @param {GpuLanes} next @param {Record<string, string>} names of throttle bits
     * @param {import("../../charts/lanes/lane.js").View} view @param {boolean} byTime @param {AbortSignal} signal
     */
    async update(next, names, view, byTime, signal) {
      lanes = byTime ? onTime(next) : next;
      reasons = names;
      const isOther = isHost !== (next.key === "") || isByTime !== byTime;
      isHost = next.key === "";
      isByTime = byTime;
      const shown = group && !isOther ? group : rebuild();
      await shown.update(byTime ? { ...view, range: rangeOf(lanes) } : view, signal);
    },
    destroy() {
      group?.destroy();
      legend.destroy();
    },
  };
}

// One card as text: its state, what it is, all its newest values, and its events.

/** @typedef {import("../../types.js").GpuEvent} GpuEvent */

/** @type {Record<string, string>} */
const LEVELS = { gone: "critical", alarm: "critical", slowed: "warning", stale: "empty", ok: "ok" };

/** @param {Gpu} gpu @returns {import("../../types.js").Verdict} */
function cardVerdict({ rank, name, state, why }) {
  const whose = `The GPU of rank ${rank}${name ? ` (${name})` : ""}`;
  const reasons = why.join("; ");
  /** @type {Record<string, string>} */
  const texts = {
    ok: `Nothing stands out: ${whose.slice(0, 1).toLowerCase()}${whose.slice(1)} answers, and is not throttled.`,
    gone: `${whose} is gone: ${reasons}`,
    alarm: `${whose} needs attention: ${reasons}`,
    slowed: `${whose} is throttled: ${reasons}`,
    stale: `${whose} was fine when its rank was last heard of: ${reasons}`,
  };
  return { level: LEVELS[state] ?? "empty", parts: [["text", texts[state] ?? `${whose}: ${state}`]], links: [] };
}

/** @param {HostSample} sample @returns {import("../../types.js").Verdict} */
const hostVerdict = ({ rank, host }) => ({ level: "empty", parts: [["text", `The host ${host}, as rank ${rank} sees it.`]], links: [] });

/** What does not change. @param {Record<string, any>} about @param {string} host */
function aboutList(about, host) {
  const details = [
    ["Host", host],
    ["UUID", about.uuid],
    ["PCI", about.pci_bus_id],
    ["Driver", about.driver_version],
    ["Part of (MIG)", about.parent_uuid],
    ["CPUs", about.cpus],
  ].filter(([, value]) => typeof value === "string" || isKnown(value));
  return el("dl", { class: "details-list" }, ...details.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "name" }, clip(String(value), 80)))));
}

/** Every column as it was last read: counters that no lane shows stand here. @param {Record<string, number | null>} values @param {Record<string, any>} about */
function valueList(values, about) {
  const known = Object.entries(values).filter(([name]) => name !== "present").sort(([a], [b]) => a.localeCompare(b));
  const items = known.map(([name, value]) => {
    const text = named(name, value, about);
    return el("div", {}, el("dt", { title: name }, clip(columnName(name), 60)), el("dd", { class: text === UNKNOWN ? "muted" : null }, clip(text, 120)));
  });
  return el("dl", { class: "value-list" }, ...items);
}

/** When it was, in the reader's time zone, which is named. Pure. @param {number} time_ns */
export const eventTime = (time_ns) => new Date(time_ns / 1e6).toLocaleString("en-GB", { timeZoneName: "short" });

/** @typedef {GpuEvent & {view: ReturnType<typeof onward>}} Row `view`: what its link takes along, so that it follows the shown steps */

/** @param {import("../../types.js").PageContext} ctx */
function createEventTable(ctx) {
  const table = createSortedTable(
    ctx,
    [
      { name: "Step", by: (/** @type {Row} */ event) => event.step, show: (event) => (event.step < 0 ? UNKNOWN : link(runPath(ctx.params.id, "step", { ...event.view, step: event.step, rank: event.rank ?? null }), {}, count(event.step))), isNumber: true },
      { name: "When", by: (event) => event.time_ns, show: (event) => eventTime(event.time_ns), help: "By the clock of the rank's host, in your time zone" },
      { name: "Kind", by: (event) => event.kind, show: (event) => ({ xid: "Xid", gpu: "GPU", gpu_lost: "lost" })[event.kind] ?? event.kind },
      { name: "What", show: (event) => el("span", { class: "breaks" }, clip(event.message, 400)) },
    ],
    { caption: "Events of this card", name: "gpu-events-table", sortBy: "When", most: 100 },
  );
  return {
    element: table.element,
    /** @param {readonly GpuEvent[]} events */
    update: (events) => table.update(events.map((event) => ({ ...event, view: onward(ctx.state) }))),
  };
}
