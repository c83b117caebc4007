// The lanes of the Overview page, with those that only it has: phases of a step, waits of the ranks, and GPUs.

import * as api from "../../api/client.js";
import { throttle } from "../../api/throttle.js";
import { laneFlags, pinnedLanes, viewKey } from "../../api/url_state.js";
import { costShare } from "../../charts/colours.js";
import { heatmapDrawing, layoutOf } from "../../charts/drawing.js";
import { columnAt } from "../../charts/heatmap.js";
import { createLaneGroup } from "../../charts/lanes/lane_group.js";
import { createLaneMenu } from "../../charts/lanes/lane_menu.js";
import { LANES } from "../../charts/lanes/lane_specs.js";
import { createLoggedLanes, laneNote, leftOutText, loggedOf, optionalLane } from "../../charts/lanes/series_lanes.js";
import { areaItem, costBar, lineItem } from "../../charts/legend.js";
import { points, readLines, valueAt } from "../../charts/lines.js";
import { STATE, choiceOf } from "../../charts/statistics.js";
import { el, replace } from "../../format/dom.js";
import { count, plural, rankList, seconds } from "../../format/numbers.js";
import { decode } from "../../format/typed_array.js";
import { UNKNOWN, isKnown, time } from "../../format/units.js";
import { CALM, THROTTLE, eventModel } from "../../widgets/gpu/gpu_lanes.js";
import { bitBands, places, timesOf } from "../../widgets/gpu/gpu_samples.js";
import { bitNames } from "../../widgets/gpu/gpu_text.js";
import { known } from "../../widgets/ranks/mesh_places.js";

/** The lanes that show what a rule found, the most telling first. @type {Record<string, readonly string[]>} */
const EVIDENCE = {
  first_nonfinite: ["loss", "loss_scale"],
  loss_nonfinite: ["loss", "timeline"],
  loss_scale_collapse: ["loss_scale", "loss"],
  headroom_trend: ["timeline"],
  straggler: ["waits", "step_time"],
  hang: ["step_time"],
  gpu_health: ["gpu-cards", "step_time"],
  out_of_memory: ["memory"],
};
/** As they stand without a finding, but for the layers, which come after the first of them. */
const USUAL = ["loss", "step_time", "loss_scale", "timeline", "phases", "waits", "gpu-cards", "memory"];
const BEFORE_LAYERS = 3;
const LAYERS = "layers";

/** What of a run's series a lane is made of; of the others only their figure says whether there is anything. @type {Record<string, (series: readonly string[]) => boolean>} */
const RECORDED = {
  loss: (series) => series.includes("loss"),
  loss_scale: (series) => series.includes("loss_scale"),
  step_time: (series) => series.includes("step_time_s"),
  memory: (series) => series.includes("memory_allocated_bytes") || series.includes("process_resident_bytes"),
  phases: (series) => PHASE_SERIES.some((name) => series.includes(name)),
};
const PHASE_SERIES = ["data_wait_s", "forward_s", "backward_s", "exposed_comm_s", "optimizer_s"];

/** Pixels of plot: of lines, of rows, and of a maximised lane. */
const LINE_HEIGHT = 48;
const ROWS_HEIGHT = 52;
const LEAST_ROWS_HEIGHT = 30;
const MOST_HEIGHT = 600;
const MAXIMISED = 240;

/** @param {import("../../charts/lanes/lane_specs.js").LaneSpec} spec @param {number} rows @param {boolean} isMaximised */
function heightOf({ name, cells, plotHeight }, rows, isMaximised) {
  const wanted = rows * ROW;
  if (name === LAYERS) return isMaximised ? Math.max(MAXIMISED, Math.min(MOST_HEIGHT, wanted)) : plotHeight(rows);
  if (!cells && name !== CARDS.name) return isMaximised ? MAXIMISED : LINE_HEIGHT;
  return isMaximised ? Math.max(MAXIMISED / 2, Math.min(MOST_HEIGHT, wanted)) : Math.max(LEAST_ROWS_HEIGHT, Math.min(ROWS_HEIGHT, wanted));
}

/**
 * The names of the lanes from the top: pinned ones, those with evidence, the usual ones; the layers where the first screen has room for them. Pure.
 * @param {{shown: readonly string[], pinned: readonly string[], rules: readonly string[]}} given
 */
export function laneOrder({ shown, pinned, rules }) {
  const first = [...pinned, ...rules.flatMap((rule) => EVIDENCE[rule] ?? [])];
  const rest = [...USUAL, ...shown.filter((name) => name !== LAYERS)];
  const order = [...new Set([...first, ...rest])].filter((name) => shown.includes(name));
  if (order.includes(LAYERS) || !shown.includes(LAYERS)) return order;
  const at = Math.max(pinned.filter((name) => shown.includes(name)).length, BEFORE_LAYERS);
  return [...order.slice(0, at), LAYERS, ...order.slice(at)];
}

/**
 * All lanes, on one axis; those without anything to show take no room.
 * @param {import("../../types.js").PageContext} ctx @param {() => void} refetch
 * @param {{layersQuery: () => import("../../api/client.js").Query, onLayers: (model: any) => void, onLane: (name: string, model: any) => void, onSeries: (series: string, model: any) => void}} handlers
 */
export function createOverviewLanes(ctx, refetch, { layersQuery, onLayers, onLane, onSeries }) {
  const loader = laneNote("loader-bound");
  const more = laneNote("logged-more");
  const missing = createMissingLanes();
  const phases = optionalLane(PHASES, { onModel: (model) => setNote(loader, loaderNote(model)) });
  const waits = optionalLane(WAITS, { load: createWaitsSource(ctx.params.id) });
  const gpus = optionalLane(CARDS, { load: createCardsSource(ctx.params.id) });
  const logged = createLoggedLanes();
  const optional = [phases, waits, gpus, ...logged];
  /** @type {Record<string, import("../../charts/lanes/lane.js").LaneOptions>} */
  const own = { timeline: { query: foldOf }, memory: { title: ({ run: of }) => (of.series.includes("memory_allocated_bytes") ? "Device memory" : "Process memory, resident") } };
  const first = Object.values(LANES).flatMap((spec) => (spec.onOverview ? [{ spec, options: own[spec.name] }] : []));
  const layers = { spec: LANES.layers, options: { query: layersQuery, title: (/** @type {import("../../charts/lanes/lane.js").View} */ { run }) => `${choiceOf(run, "")?.title ?? "Headroom"} by layer, worst of all ranks, call order`, onModel: onLayers } };
  const group = createLaneGroup(ctx, [...first, ...optional.map(({ entry }) => entry), layers].map(compact), refetch, { hasStrip: true, incident: incidentOf });
  optional.forEach((one, i) => one.attach(group.lanes[first.length + i], one === phases && loader));
  group.element.classList.add("is-compact");
  for (const { element, spec } of group.lanes) element.classList.toggle("has-rows", Boolean(spec.cells) || spec.name === CARDS.name);
  group.element.append(more, missing.element);
  /** @type {Map<string, boolean>} whether a lane's figure has anything */
  const isEmpty = new Map();
  /** Of the findings as the page opened: lanes do not move under the reader. @type {string[] | null} */
  let rules = null;
  /** @type {import("../../types.js").Run | null} */
  let run = null;
  /** @type {string[]} */
  let order = [];

  /** @param {import("../../charts/lanes/lane_group.js").LaneEntry} entry @returns {import("../../charts/lanes/lane_group.js").LaneEntry} */
  function compact({ spec, options = {} }) {
    const flags = () => laneFlags(ctx.state.lanes, spec.name);
    return {
      spec,
      options: {
        ...options,
        isCompact: true,
        isTitleAbove: spec.name === LAYERS,
        height: (rows) => heightOf(spec, rows, flags().has("max")),
        style: () => ({ isLog: flags().has("log"), isSmooth: flags().has("smooth") }),
        menu: createLaneMenu(ctx, spec, () => order),
        onModel(model) {
          options.onModel?.(model);
          isEmpty.set(spec.name, spec.isEmpty(model));
          const slot = logged.findIndex(({ entry }) => entry.spec.name === spec.name);
          if (slot < 0) onLane(spec.name, model);
          else if (run && loggedOf(run.series)[slot] !== undefined) onSeries(loggedOf(run.series)[slot], model);
          arrange();
        },
      },
    };
  }

  /** Whether a lane is there: null where that is not known yet. @param {string} name @param {import("../../types.js").Run} of @returns {boolean | null} */
  function isThere(name, of) {
    if (name === LAYERS || name === "timeline") return true;
    const slot = logged.findIndex(({ entry }) => entry.spec.name === name);
    if (slot >= 0) return slot < loggedOf(of.series).length;
    if (RECORDED[name]) return RECORDED[name](of.series);
    return isEmpty.has(name) ? !isEmpty.get(name) : null;
  }

  function arrange() {
    if (!run) return;
    const of = run;
    const evidence = (rules ?? []).flatMap((rule) => EVIDENCE[rule] ?? []);
    const shown = group.lanes.filter(({ spec }) => isThere(spec.name, of) ?? evidence.includes(spec.name)); // a finding is made of something
    const names = laneOrder({ shown: shown.map(({ spec }) => spec.name), pinned: pinnedLanes(ctx.state.lanes), rules: rules ?? [] });
    for (const lane of group.lanes) {
      lane.element.classList.toggle("is-absent", !shown.includes(lane));
      lane.element.toggleAttribute("data-pinned", pinnedLanes(ctx.state.lanes).includes(lane.spec.name));
    }
    missing.update(group.lanes.flatMap(({ spec }) => (USUAL.includes(spec.name) && isThere(spec.name, of) === false ? [spec] : [])));
    if (names.join() === order.join()) return;
    order = names;
    for (const [i, name] of names.entries()) {
      const lane = group.lanes.find(({ spec }) => spec.name === name);
      if (lane && group.element.children[i] !== lane.element) group.element.insertBefore(lane.element, group.element.children[i]);
    }
  }

  return {
    ...group,
    /** @param {import("../../charts/lanes/lane.js").View} view @param {AbortSignal} signal */
    async update(view, signal) {
      run = view.run;
      rules ??= (run.verdict.findings ?? []).map(({ rule }) => rule);
      group.element.dataset.level = run.verdict.level;
      setNote(more, leftOutText(run.series));
      arrange();
      await group.update(view, signal);
    },
  };
}

/** From where the finding of the verdict began to the newest step: it is open. @param {import("../../charts/lanes/lane.js").View} view @returns {import("../../types.js").StepRange | null} */
function incidentOf({ run }) {
  const step = run.verdict.findings?.[0]?.step ?? null;
  return step === null || run.last_step === null || step > run.last_step ? null : { start: step, stop: run.last_step + 1 };
}

/** What the run does not have, in a line that opens. */
function createMissingLanes() {
  const summary = el("summary", {});
  const list = el("ul", { class: "plain-list" });
  const element = el("details", { class: "lanes-missing", "data-testid": "not-recorded", hidden: true }, summary, list);
  return {
    element,
    /** @param {readonly import("../../charts/lanes/lane_specs.js").LaneSpec[]} specs */
    update(specs) {
      const names = specs.map(({ name }) => name).join();
      if (element.dataset.shown === names) return;
      element.dataset.shown = names;
      element.hidden = !specs.length;
      replace(summary, `${count(specs.length)} not recorded: ${specs.map(({ title }, i) => (i ? title.toLowerCase() : title).replace("gpus", "GPUs")).join(", ")}`);
      replace(list, ...specs.map(({ title, empty }) => el("li", {}, el("strong", {}, title), ` ${empty}`)));
    },
  };
}

/** @param {HTMLElement} note @param {string} text */
function setNote(note, text) {
  note.textContent = text;
  note.hidden = !text;
}

// What each step spent its time on, stacked to the step's own time.

/** @typedef {import("../../charts/lines.js").LinesModel} LinesModel */
/** @typedef {LinesModel & {phases: {place: number, series: import("../../charts/lines.js").Series}[], slowest: import("../../charts/lines.js").Series | null}} PhasesModel */

/** The phases in the order they are stacked, each with its colour of style.css. */
const NAMES = ["data wait", "forward", "backward", "exposed comm", "optimizer", "other"];
const SLOWEST = "slowest step";

/** @param {import("../../types.js").FigureAnswer} answer @returns {PhasesModel} */
export function readPhases(answer) {
  const model = readLines(answer);
  const phases = NAMES.flatMap((name, place) => {
    const series = model.series.find((one) => one.name === name);
    return series ? [{ place, series }] : [];
  });
  return { ...model, phases, slowest: model.series.find((one) => one.name === SLOWEST) ?? null };
}

/** @param {PhasesModel} model @param {import("../../charts/frame.js").Frame} frame @param {import("../../charts/theme.js").Palette} palette @returns {import("../../charts/drawing.js").Drawing} */
function drawPhases({ phases, slowest }, frame, palette) {
  const areas = phases.map(({ place, series }) => ({
    type: "scatter",
    mode: "lines",
    x: series.x,
    y: series.y,
    stackgroup: "phases",
    line: { width: 0, color: palette.phases[place] },
    fillcolor: palette.phases[place],
    hoverinfo: "skip",
  }));
  const line = slowest ? [{ type: "scatter", mode: "lines", x: slowest.x, y: slowest.y, connectgaps: false, hoverinfo: "skip", line: { color: palette.muted, width: 1.2, dash: "dot" } }] : [];
  return { traces: [...areas, ...line], layout: layoutOf(frame, palette, { nticks: 4, ticksuffix: " ms", rangemode: "tozero" }) };
}

/** @param {PhasesModel} model @param {number} step */
function phaseReadout({ phases, meta }, step) {
  const parts = phases.map(({ place, series }) => {
    const value = valueAt(series, step, Math.max(1, meta.steps_per_column));
    return `${NAMES[place]} ${value === null ? UNKNOWN : value === 0 ? "0 ms" : seconds(value / 1000)}`;
  });
  return parts.join(", ") || UNKNOWN;
}

function phaseLegend() {
  const items = NAMES.map((name, place) => el("span", { class: "legend-item" }, el("span", { class: "swatch", "data-phase": place, "aria-hidden": "true" }), name));
  return el("div", { class: "legend lane-legend" }, ...items, lineItem("limit", "slowest rank and step"));
}

/** Who waits for its data loader more than a loader that keeps up would cost. @param {PhasesModel} model */
export function loaderNote({ meta }) {
  const bound = meta.loader_bound_ranks ?? [];
  if (!bound.length) return "";
  const who = rankList(bound);
  return `Bound by the data loader: ${who} ${bound.length === 1 ? "spends" : "spend"} a large part of each step waiting for data, and the others wait for ${bound.length === 1 ? "it" : "them"} in their collectives.`;
}

/** @type {import("../../charts/lanes/lane_specs.js").LaneSpec} */
export const PHASES = {
  name: "phases",
  title: "Step phases",
  empty: "No phases were recorded of these steps.",
  plotHeight: () => 96,
  read: readPhases,
  isEmpty: (/** @type {PhasesModel} */ { phases }) => !phases.some(({ series }) => points(series).length),
  draw: drawPhases,
  readout: phaseReadout,
  legend: phaseLegend,
};

// Rank by step: how long each rank waited for the others in its collectives, and for whom, on the lanes' axis.

/** @typedef {import("../../types.js").HeatmapRow} HeatmapRow */
/**
 * @typedef {object} WaitsModel
 * @property {string} name
 * @property {HeatmapRow[]} rows
 * @property {number} columns
 * @property {ArrayLike<number>} z seconds that each rank waited; NaN: not known
 * @property {ArrayLike<number>} cost what the others waited for it, added up
 * @property {ArrayLike<number>} delay the same as time on the wall
 * @property {number} x0
 * @property {number} dx
 * @property {import("../../types.js").FigureMeta} meta
 * @property {boolean} isKnown whether anything is
 */

const ROW = 15;

/** Seconds. Fixed, so that two runs compare by eye. @type {import("../../charts/colours.js").CostScale} */
const SCALE = { low: 1e-4, high: 1, ticks: [1e-4, 1e-3, 1e-2, 0.1, 1], text: (s) => (s >= 1 ? "1+ s" : `${s * 1e3} ms`) };

/** @param {import("../../types.js").FigureAnswer} answer @returns {WaitsModel} */
export function readWaits({ figure, meta }) {
  const { name, x0 = 0, dx = 1, z: sent } = figure.data[0];
  const rows = meta.rows ?? [];
  const z = decode(sent);
  const { cost_to_others_s: cost, delay_s: delay } = /** @type {{cost_to_others_s?: unknown, delay_s?: unknown}} */ (/** @type {unknown} */ (meta));
  const isKnown = Array.from(z).some(Number.isFinite);
  return { name, rows, columns: rows.length ? z.length / rows.length : 0, z, cost: decode(cost), delay: decode(delay), x0, dx, meta, isKnown };
}

/** @param {WaitsModel} model @param {import("../../charts/frame.js").Frame} frame @param {import("../../charts/theme.js").Palette} palette */
const draw = (model, frame, palette) => heatmapDrawing({ ...model, markSteps: [] }, frame, palette);

/** On the logarithmic scale. @param {WaitsModel} model @param {import("../../charts/theme.js").Palette} palette */
function cells(model, palette) {
  const z = Array.from(model.z, (seconds) => (Number.isFinite(seconds) ? costShare(seconds, SCALE) : NaN));
  const states = z.map((share) => (Number.isFinite(share) ? STATE.value : STATE.notObserved));
  return { z, states, low: 0, high: 1, colours: palette.scales.cost };
}

/** Of a column the largest of some values and its row; null where none is known. @param {WaitsModel} model @param {ArrayLike<number>} values @param {number} column */
function largest({ rows, columns }, values, column) {
  const known = rows.map((_, row) => ({ row, value: values[row * columns + column] })).filter(({ value }) => Number.isFinite(value));
  return known.length ? known.reduce((a, b) => (b.value > a.value ? b : a)) : null;
}

/** Who waited how long, and whose fault it was. @param {WaitsModel} model @param {number} step @param {number | null} row */
function waitsReadout(model, step, row) {
  const column = columnAt(/** @type {any} */ (model), step);
  if (column === null) return "";
  const own = (/** @type {number} */ at) => ({ row: at, value: model.z[at * model.columns + column] });
  const at = row === null ? largest(model, model.z, column) : own(row);
  if (!at || !Number.isFinite(at.value)) return row === null ? "not known" : `${model.rows[row].label}: not known`;
  const late = largest(model, model.cost, column);
  const whose = late && late.value > 0 ? `; for ${model.rows[late.row].label} most, ${time(late.value)} of all the others` : "";
  return `${model.rows[at.row].label} waited ${time(at.value)}${whose}`;
}

function waitsLegend() {
  return el("div", { class: "legend lane-legend" }, costBar(SCALE), areaItem("unknown", "not known"));
}

/** By what the rows that are ranks stand together. @param {import("../../charts/lanes/lane.js").View} view */
const foldOf = ({ run, state }) => (known(run, state.fold) ? { fold: state.fold } : {});

/** To read many ranks' collectives takes the server a while. @param {string} run */
const createWaitsSource = (run) =>
  throttle((/** @type {import("../../charts/lanes/lane.js").View} */ view, /** @type {number} */ columns, /** @type {AbortSignal} */ signal) => api.slowFigure(run, "waits", { ...view.range, columns, ...foldOf(view) }, signal).then(readWaits), viewKey);

/** @type {import("../../charts/lanes/lane_specs.js").LaneSpec} */
export const WAITS = {
  name: "waits",
  title: "Waits in collectives by rank",
  empty: "No collective was timed in these steps.",
  plotHeight: (rows) => Math.max(30, Math.min(200, rows * ROW)),
  isEmpty: (/** @type {WaitsModel} */ { isKnown }) => !isKnown,
  draw,
  cells,
  readout: waitsReadout,
  legend: waitsLegend,
  bar: { title: "waited for the others", tickvals: SCALE.ticks.map((value) => costShare(value, SCALE)), ticktext: SCALE.ticks.map(SCALE.text) },
};

// The run's GPUs on the lanes' axis, a row a card: when it was throttled or gone, and its events.

/** @typedef {import("../../types.js").Gpu} Gpu */
/** @typedef {import("../../types.js").GpuLanes} GpuLanes */
/** @typedef {import("../../types.js").BandRow} BandRow */
/** @typedef {import("../../types.js").Span} Span */
/** @typedef {import("../../charts/lanes/lane.js").View} View */
/** @typedef {BandRow & {rank: number | null, lanes: GpuLanes, reasons: {name: string, bands: Span[]}[], label: string, count: number, tensor: null, tensors: null}} CardRow */
/** @typedef {{rows: CardRow[], dx: number, meta: import("../../types.js").FigureMeta, isKnown: boolean, total: number, troubled: number, isCritical: boolean}} CardsModel of all the run's cards how many there are, and in trouble */

/** Those that are worst off; the GPUs page has all. */
const MOST_CARDS = 8;
const COLUMNS = 400;
/** Samples come once a second, and there are many. Milliseconds. */
const KEEP_MS = 5000;
/** A hole in the samples that is larger than this share of all is shown as one. */
const HOLE_SHARE = 0.02;

/** Asks for the samples of the worst cards, now and then. @param {string} run */
function createCardsSource(run) {
  const cards = throttle((/** @type {AbortSignal} */ signal) => api.gpus(run, signal), () => "", KEEP_MS); // the same in every range

  /** @param {View} view @param {number} _ @param {AbortSignal} signal @returns {Promise<CardsModel>} */
  async function ask({ range, state }, _, signal) {
    const all = await cards(signal);
    const chosen = all.gpus.slice(0, MOST_CARDS).sort((a, b) => a.rank - b.rank);
    const isZoomed = state.start !== null || state.stop !== null || Boolean(state.last);
    const lanes = await Promise.all(chosen.map((card) => samplesOf(run, card, isZoomed ? range : null, signal)));
    const rows = chosen.map((card, i) => cardRow(card, lanes[i], all.throttle_reasons ?? {}));
    const left = all.gpus.length - chosen.length;
    const note = left > 0 ? `the ${MOST_CARDS} that are worst off; ${plural(left, "more card")} on the GPUs page` : "";
    const meta = { ...range, steps_per_column: 1, note };
    const troubled = all.gpus.filter(({ state }) => state === "gone" || state === "alarm" || state === "slowed");
    return { rows, dx: 1, meta, isKnown: true, total: all.gpus.length, troubled: troubled.length, isCritical: troubled.some(({ state }) => state !== "slowed") };
  }
  return throttle(ask, viewKey, KEEP_MS);
}

/** All samples first, since they place the steps, then those of the shown steps more finely. @param {string} run @param {Gpu} card @param {import("../../types.js").StepRange | null} range @param {AbortSignal} signal */
async function samplesOf(run, { rank, key }, range, signal) {
  const whole = await api.gpuLanes(run, rank, { key, columns: COLUMNS }, signal);
  const times = range && timesOf(whole, range);
  return times ? api.gpuLanes(run, rank, { key, columns: COLUMNS, ...times }, signal) : whole;
}

/** @param {Gpu} card @param {GpuLanes} lanes @param {Record<string, string>} names of throttle bits @returns {CardRow} */
export function cardRow({ rank, device_index: index }, lanes, names) {
  const known = { ...names, ...lanes.about.names?.throttle_reasons };
  const bits = [...bitBands(lanes, "throttle_reasons")];
  const reasons = bits.map(([bit, bands]) => ({ name: bitNames(bit, known)[0] ?? `bit ${bit}`, bands }));
  const gone = goneSpans(lanes);
  const bands = [
    ...bits.flatMap(([bit, spans]) => (bit === CALM ? spans.map((span) => ({ ...span, style: /** @type {const} */ ("calm") })) : [])),
    ...bits.flatMap(([bit, spans]) => (bit === CALM ? [] : spans.map((span) => ({ ...span, style: /** @type {const} */ ("warning") })))),
    ...gone.map((span) => ({ ...span, style: /** @type {const} */ ("bad") })),
  ];
  const name = index === null ? `rank ${rank}` : `rank ${rank}, cuda:${index}`;
  const marks = eventModel(lanes).rows.flatMap((row) => row.marks);
  return { name, label: name, count: 1, tensor: null, tensors: null, rank, lanes, reasons: [...reasons, { name: "does not answer", bands: gone }], bands, marks, isCalm: false, known: sampledSpans(lanes) };
}

/** Where there are samples, with holes where they are missing for long. @param {GpuLanes} lanes @returns {Span[]} */
function sampledSpans(lanes) {
  const x = places(lanes.steps);
  const most = Math.max(2, HOLE_SHARE * ((x.at(-1) ?? 0) - (x[0] ?? 0)));
  /** @type {Span[]} */
  const spans = [];
  for (const at of x) {
    const last = spans.at(-1);
    if (last && at - last.to <= most) last.to = at;
    else spans.push({ from: at, to: at });
  }
  return spans;
}

/** @param {GpuLanes} lanes @returns {Span[]} */
function goneSpans(lanes) {
  const isGone = (lanes.values.present ?? []).map((present) => (present === 0 ? 1 : 0));
  return bitBands({ ...lanes, values: { gone: isGone } }, "gone").get(1) ?? [];
}

/** Of the sample that stands nearest to a step a value. @param {GpuLanes} lanes @param {string} column @param {number} step */
function columnValue(lanes, column, step) {
  const x = places(lanes.steps);
  const at = x.reduce((best, place, i) => (Math.abs(place - step) < Math.abs(x[best] - step) ? i : best), 0);
  const value = x.length && Math.abs(x[at] - step) <= 1 ? lanes.values[column]?.[at] : null;
  return isKnown(value) ? value : null;
}

/** What a card did at a step: "rank 1, cuda:1: HW thermal slowdown, 88 °C, 97 % busy". @param {CardRow} row @param {number} step */
function cardText({ name, lanes, reasons, marks }, step) {
  const holds = (/** @type {Span[]} */ spans) => spans.some(({ from, to }) => from < step + 0.5 && to > step - 0.5);
  const heat = columnValue(lanes, "temperature_c", step);
  const busy = columnValue(lanes, "utilization_gpu_percent", step);
  const parts = [
    ...reasons.filter(({ bands }) => holds(bands)).map((reason) => reason.name),
    ...marks.filter(({ at }) => Math.abs(at - step) <= 0.5).map(({ text }) => text),
    ...(heat === null ? [] : [`${Math.round(heat)} °C`]),
    ...(busy === null ? [] : [`${Math.round(busy)} % busy`]),
  ];
  return `${name}: ${parts.join(", ") || "no sample"}`;
}

/** The card that is pointed at, else those with something to show. @param {CardsModel} model @param {number} step @param {number | null} row */
function cardsReadout({ rows }, step, row) {
  if (row !== null && rows[row]) return cardText(rows[row], step);
  const notable = rows.filter(({ bands, marks }) => bands.some(({ style, from, to }) => style !== "calm" && from < step + 0.5 && to > step - 0.5) || marks.some(({ at }) => Math.abs(at - step) <= 0.5));
  const isSampled = rows.some(({ known = [] }) => known.some(({ from, to }) => from - 0.5 <= step && step <= to + 0.5));
  return notable.map((one) => cardText(one, step)).join("; ") || (isSampled ? "no GPU throttled" : "no sample");
}

function cardsLegend() {
  const item = (/** @type {string} */ band, /** @type {string} */ text) => el("span", { class: "legend-item" }, el("span", { class: "swatch", "data-band": band, "aria-hidden": "true" }), text);
  const event = el("span", { class: "legend-item" }, el("span", { class: "bad", "aria-hidden": "true" }, "◆"), "Xid or memory error");
  return el("div", { class: "legend lane-legend" }, item("known", "sampled"), item("calm", "at its power cap"), item("warning", "throttled"), item("bad", "does not answer"), event);
}

/** @type {import("../../charts/lanes/lane_specs.js").LaneSpec} */
export const CARDS = { ...THROTTLE, name: "gpu-cards", title: "GPUs", empty: "No card has sent a sample in these steps.", readout: cardsReadout, legend: cardsLegend };
