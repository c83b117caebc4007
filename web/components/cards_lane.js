// The run's GPUs on the lanes' axis, a row a card: when it was slowed down or gone, and what was said of it.

import * as api from "../api.js";
import { el } from "../dom.js";
import { plural } from "../format.js";
import { bitBands, places, timesOf } from "../gpu_series.js";
import { bitNames } from "../gpu_words.js";
import { isKnown } from "../quantities.js";
import { seldom } from "../seldom.js";
import { CALM, THROTTLE, eventModel } from "./gpu_bands.js";
import { viewKey } from "./lane_view.js";

/** @typedef {import("../types.js").Gpu} Gpu */
/** @typedef {import("../types.js").GpuLanes} GpuLanes */
/** @typedef {import("./gpu_bands.js").BandRow} BandRow */
/** @typedef {import("./gpu_bands.js").Span} Span */
/** @typedef {import("./lane.js").View} View */
/** @typedef {BandRow & {rank: number | null, lanes: GpuLanes, reasons: {name: string, bands: Span[]}[], label: string, count: number, tensor: null, tensors: null}} CardRow */
/** @typedef {{rows: CardRow[], dx: number, meta: import("../types.js").FigureMeta, isKnown: boolean}} CardsModel */

/** Those that are worst off; the GPUs page has all. */
const MOST_CARDS = 8;
const COLUMNS = 400;
/** Samples come once a second, and there are many. Milliseconds. */
const KEEP_MS = 5000;
/** A hole in the samples that is larger than this share of all is shown as one. */
const HOLE_SHARE = 0.02;

/** Asks for the samples of the worst cards, now and then. @param {string} run */
export function createCardsSource(run) {
  const cards = seldom((/** @type {AbortSignal} */ signal) => api.gpus(run, signal), () => "", KEEP_MS); // the same in every range

  /** @param {View} view @param {number} _ @param {AbortSignal} signal @returns {Promise<import("../types.js").FigureAnswer>} */
  async function ask({ range, state }, _, signal) {
    const all = await cards(signal);
    const chosen = all.gpus.slice(0, MOST_CARDS).sort((a, b) => a.rank - b.rank);
    const isZoomed = state.start !== null || state.stop !== null || Boolean(state.last);
    const lanes = await Promise.all(chosen.map((card) => samplesOf(run, card, isZoomed ? range : null, signal)));
    const rows = chosen.map((card, i) => cardRow(card, lanes[i], all.throttle_reasons ?? {}));
    const left = all.gpus.length - chosen.length;
    const note = left > 0 ? `the ${MOST_CARDS} that are worst off; ${plural(left, "more card")} on the GPUs page` : "";
    const meta = { ...range, steps_per_column: 1, note };
    return /** @type {any} */ ({ model: { rows, dx: 1, meta, isKnown: true }, meta });
  }
  return seldom(ask, viewKey, KEEP_MS);
}

/** All samples first, since steps are found by them, then those of the shown steps more finely. @param {string} run @param {Gpu} card @param {import("../types.js").StepRange | null} range @param {AbortSignal} signal */
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
    ...bits.flatMap(([bit, spans]) => (bit === CALM ? spans.map((span) => ({ ...span, look: /** @type {const} */ ("calm") })) : [])),
    ...bits.flatMap(([bit, spans]) => (bit === CALM ? [] : spans.map((span) => ({ ...span, look: /** @type {const} */ ("warning") })))),
    ...gone.map((span) => ({ ...span, look: /** @type {const} */ ("bad") })),
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
function valueAt(lanes, column, step) {
  const x = places(lanes.steps);
  const at = x.reduce((best, place, i) => (Math.abs(place - step) < Math.abs(x[best] - step) ? i : best), 0);
  const value = x.length && Math.abs(x[at] - step) <= 1 ? lanes.values[column]?.[at] : null;
  return isKnown(value) ? value : null;
}

/** What a card did at a step: "rank 1, cuda:1: HW thermal slowdown, 88 °C, 97 % busy". @param {CardRow} row @param {number} step */
function cardText({ name, lanes, reasons, marks }, step) {
  const holds = (/** @type {Span[]} */ spans) => spans.some(({ from, to }) => from < step + 0.5 && to > step - 0.5);
  const heat = valueAt(lanes, "temperature_c", step);
  const busy = valueAt(lanes, "utilization_gpu_percent", step);
  const said = [
    ...reasons.filter(({ bands }) => holds(bands)).map((reason) => reason.name),
    ...marks.filter(({ at }) => Math.abs(at - step) <= 0.5).map(({ text }) => text),
    ...(heat === null ? [] : [`${Math.round(heat)} °C`]),
    ...(busy === null ? [] : [`${Math.round(busy)} % busy`]),
  ];
  return `${name}: ${said.join(", ") || "no sample"}`;
}

/** The card that is pointed at, else those with something to say. @param {CardsModel} model @param {number} step @param {number | null} row */
function readout({ rows }, step, row) {
  if (row !== null && rows[row]) return cardText(rows[row], step);
  const notable = rows.filter(({ bands, marks }) => bands.some(({ look, from, to }) => look !== "calm" && from < step + 0.5 && to > step - 0.5) || marks.some(({ at }) => Math.abs(at - step) <= 0.5));
  const isSampled = rows.some(({ known = [] }) => known.some(({ from, to }) => from - 0.5 <= step && step <= to + 0.5));
  return notable.map((one) => cardText(one, step)).join("; ") || (isSampled ? "no card slowed down" : "no sample");
}

function legend() {
  const item = (/** @type {string} */ look, /** @type {string} */ text) => el("span", { class: "legend-item" }, el("span", { class: "swatch", "data-band": look, "aria-hidden": "true" }), text);
  const event = el("span", { class: "legend-item" }, el("span", { class: "bad", "aria-hidden": "true" }, "◆"), "Xid or memory error");
  return el("div", { class: "legend lane-legend" }, item("known", "sampled"), item("calm", "at its power cap"), item("warning", "slowed down"), item("bad", "does not answer"), event);
}

/** @type {import("./lane_specs.js").LaneSpec} */
export const CARDS = { ...THROTTLE, name: "gpu-cards", title: "GPUs", empty: "No card has sent a sample in these steps.", readout, legend };
