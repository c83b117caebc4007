// The lanes of a GPU and of its host: which columns, units and limits; and bands for throttling and events.

import { escapePlotText, layoutOf, namedRows } from "../../charts/drawing.js";
import { lineItem } from "../../charts/legend.js";
import { plainLines, points, valueAt } from "../../charts/lines.js";
import { el } from "../../format/dom.js";
import { shorten } from "../../format/numbers.js";
import { UNKNOWN } from "../../format/units.js";
import { bitBands, column, constant, linesOf, placeOfEvent, sum, timeShare } from "./gpu_samples.js";
import { bitNames } from "./gpu_text.js";

/** @typedef {import("../../types.js").GpuLanes} GpuLanes */
/** @typedef {import("../../charts/lines.js").LinesModel} LinesModel */
/** @typedef {import("./gpu_samples.js").Source} Source */
/** @typedef {{name: string, title: string, unit: string, lines: Source[], limits?: Source[], top?: number}} LineLane */

const GIB = 2 ** 30;
const MB = 1e6;
const COLOURS = /** @type {const} */ (["accent", "second", "warning"]);

/** @param {string} name @param {(lanes: GpuLanes) => (number | null)[]} of @returns {Source} */
const line = (name, of) => ({ name, of });

/** @type {readonly LineLane[]} */
export const GPU_LANES = [
  { name: "gpu-utilisation", title: "Utilisation", unit: "%", top: 100, lines: [line("kernels running", column("utilization_gpu_percent")), line("memory busy", column("utilization_memory_percent"))] },
  {
    name: "gpu-clocks",
    title: "Clocks",
    unit: "MHz",
    lines: [line("SM", column("sm_clock_mhz")), line("memory", column("memory_clock_mhz"))],
    limits: [line("SM maximum", constant("maxima", "sm_clock_mhz")), line("memory maximum", constant("maxima", "memory_clock_mhz"))],
  },
  { name: "gpu-power", title: "Power", unit: "W", lines: [line("power", column("power_w"))], limits: [line("limit", column("power_limit_w"))] },
  {
    name: "gpu-temperature",
    title: "Temperature",
    unit: "°C",
    lines: [line("chip", column("temperature_c")), line("memory", column("temperature_memory_c"))],
    limits: [line("slows down at", sum("temperature_c", "slowdown_margin_c"))],
  },
  {
    name: "gpu-held",
    title: "Time throttled",
    unit: "%",
    lines: [line("by power", timeShare("violation_power_ns")), line("by heat", timeShare("violation_thermal_ns")), line("by the board or for reliability", timeShare("violation_board_limit_ns", "violation_reliability_ns"))],
  },
  { name: "gpu-memory", title: "Memory", unit: "GiB", lines: [line("used", column("memory_used_bytes", GIB))], limits: [line("total", column("memory_total_bytes", GIB))] },
  { name: "gpu-pcie", title: "PCIe", unit: "MB/s", lines: [line("sent", column("pcie_sent_bytes_per_s", MB)), line("received", column("pcie_received_bytes_per_s", MB))] },
];

/** @type {readonly LineLane[]} */
export const HOST_LANES = [
  { name: "host-cpu", title: "CPU", unit: "%", lines: [line("host", column("cpu_percent")), line("waiting for disks", column("cpu_iowait_percent")), line("training process, of one CPU", column("process_cpu_percent"))] },
  { name: "host-load", title: "Load", unit: "", lines: [line("processes, mean of a minute", column("load_1m"))] },
  {
    name: "host-memory",
    title: "Memory",
    unit: "GiB",
    lines: [line("used", column("memory_used_bytes", GIB)), line("training process", column("process_rss_bytes", GIB)), line("swap", column("swap_used_bytes", GIB))],
    limits: [line("total", column("memory_total_bytes", GIB)), line("container's limit", column("container_memory_limit_bytes", GIB))],
  },
  {
    name: "host-disk",
    title: "Disk free",
    unit: "GiB",
    lines: [line("working directory", column("disk_cwd_free_bytes", GIB)), line("temporary files", column("disk_tmp_free_bytes", GIB)), line("/dev/shm", column("disk_shm_free_bytes", GIB))],
  },
  {
    name: "host-network",
    title: "Network",
    unit: "MB/s",
    lines: [line("received", column("network_received_bytes_per_s", MB)), line("sent", column("network_sent_bytes_per_s", MB))],
  },
  {
    name: "host-infiniband",
    title: "InfiniBand",
    unit: "MB/s",
    lines: [line("received", column("infiniband_received_bytes_per_s", MB)), line("sent", column("infiniband_sent_bytes_per_s", MB))],
  },
];

/** @param {LineLane} lane @param {import("./gpu_samples.js").PlacedLanes} lanes */
export const readLineLane = ({ lines, limits = [] }, lanes) => linesOf(lanes, [...lines, ...limits]);

/** @param {LineLane} lane @returns {import("../../charts/lanes/lane_specs.js").LaneSpec} */
export function lineSpec(lane) {
  const plain = plainLines({ colours: [...COLOURS.slice(0, lane.lines.length)], unit: "", fromZero: true });
  return {
    name: lane.name,
    title: `${lane.title}${lane.unit && `, ${lane.unit}`}`,
    unit: lane.unit,
    empty: `${UNKNOWN}: not recorded here, or not supported.`,
    plotHeight: () => 72,
    isEmpty: (/** @type {LinesModel} */ model) => !model.series.slice(0, lane.lines.length).some((series) => points(series).length),
    draw: (model, frame, palette) => withLimits(plain(model, frame, palette), model, lane),
    readout: (model, step) => readout(model, step, lane),
    legend: lane.lines.length + (lane.limits?.length ?? 0) > 1 ? () => legend(lane) : undefined,
  };
}

/** Limits are dotted and not as strong as what they limit. @param {import("../../charts/drawing.js").Drawing} drawing @param {LinesModel} model @param {LineLane} lane */
function withLimits({ traces, layout }, model, lane) {
  const lines = /** @type {any[]} */ (traces);
  const limits = model.series.length - lane.lines.length;
  for (const trace of lines.slice(0, limits)) {
    trace.mode = "lines";
    trace.line = { ...trace.line, dash: "dot", width: 1.2 };
  }
  const axis = /** @type {any} */ (layout).yaxis;
  return { traces, layout: { ...layout, yaxis: lane.top ? { ...axis, range: [0, lane.top * 1.05] } : axis } };
}

/** @param {LinesModel} model @param {number} step @param {LineLane} lane */
function readout({ series, meta }, step, lane) {
  const parts = series.map((one) => {
    const value = valueAt(one, step, Math.max(1, meta.steps_per_column));
    return `${one.name} ${value === null ? UNKNOWN : `${Number(value.toPrecision(3))}${lane.unit && ` ${lane.unit}`}`}`;
  });
  return parts.join(", ");
}

/** @param {LineLane} lane */
function legend({ lines, limits = [] }) {
  return el("div", { class: "legend lane-legend" }, ...lines.map(({ name }, i) => lineItem(COLOURS[i], name)), ...limits.map(({ name }) => lineItem("limit", name)));
}

// When a card was slowed down, and why: a band a reason; and its events: a mark an event.

/** @typedef {import("./gpu_samples.js").PlacedLanes} PlacedLanes */
/** @typedef {import("../../types.js").GpuEvent} GpuEvent */
/** @typedef {import("../../types.js").Span} Span */
/** @typedef {import("../../types.js").BandRow} BandRow */
/** @typedef {import("../../types.js").BandModel} BandModel */

const ROW = 16;
const LEAST_WIDTH = 3;
/** Reasons that are part of normal work under load. */
export const CALM = 0x4;

/** @param {PlacedLanes} lanes @param {Record<string, string>} names of the bits, where the agent sent none */
export function throttleModel(lanes, names) {
  const known = { ...names, ...lanes.about.names?.throttle_reasons };
  const rows = [...bitBands(lanes, "throttle_reasons")].map(([bit, bands]) => ({
    name: bitNames(bit, known)[0] ?? `bit ${bit}`,
    bands,
    marks: [],
    isCalm: bit === CALM,
  }));
  return { rows, dx: 1, meta: { steps_per_column: 1, note: "" }, isKnown: (lanes.values.throttle_reasons ?? []).some((value) => value !== null) };
}

/** @param {GpuEvent} event */
function eventRow({ kind, data }) {
  if (kind === "xid") return "Xid";
  if (kind === "gpu_lost") return "lost";
  return Object.keys(data).some((name) => /ecc|remapped|retired/.test(name)) ? "memory errors" : "other";
}

/** @param {PlacedLanes} lanes @returns {BandModel} */
export function eventModel(lanes) {
  /** @type {Map<string, BandRow>} */
  const rows = new Map();
  for (const event of lanes.events) {
    const name = eventRow(event);
    const row = rows.get(name) ?? { name, bands: [], marks: [], isCalm: false };
    row.marks.push({ at: placeOfEvent(lanes, event), text: event.message });
    rows.set(name, row);
  }
  return { rows: [...rows.values()], dx: 1, meta: { steps_per_column: 1, note: "" }, isKnown: true };
}

/** @param {BandModel} model @param {import("../../charts/frame.js").Frame} frame @param {import("../../charts/theme.js").Palette} palette @returns {import("../../charts/drawing.js").Drawing} */
function drawBands({ rows }, frame, palette) {
  const least = (LEAST_WIDTH * (frame.range.stop - frame.range.start)) / frame.plotWidth;
  const colours = { warning: palette.warning, calm: palette.hatch, bad: palette.bad };
  const box = (/** @type {Span} */ { from, to }, /** @type {number} */ row, /** @type {number} */ height, /** @type {string} */ fillcolor) => {
    const middle = (from + to) / 2;
    const half = Math.max(to - from, least) / 2; // one second of a week still shows
    return { type: "rect", x0: middle - half, x1: middle + half, y0: row - height, y1: row + height, line: { width: 0 }, fillcolor, layer: "above" };
  };
  const shapes = rows.flatMap(({ bands, isCalm, known = [] }, row) => [
    ...known.map((span) => box(span, row, 0.08, palette.calm)),
    ...bands.map((band) => box(band, row, 0.36, colours[band.style ?? (isCalm ? "calm" : "warning")])),
  ]);
  const x = rows.flatMap(({ marks }) => marks.map(({ at }) => at));
  const y = rows.flatMap(({ marks }, row) => marks.map(() => row));
  const marks = { type: "scatter", mode: "markers", x, y, hoverinfo: "skip", marker: { symbol: "diamond", size: 9, color: palette.bad } };
  const letters = Math.floor((frame.margin.l - 10) / 6);
  const telling = rows.findIndex(({ bands, marks }) => marks.length > 0 || bands.some(({ style }) => style !== "calm"));
  const labelled = namedRows(rows.length, frame.plotHeight, telling < 0 ? null : telling);
  const yaxis = {
    range: [rows.length - 0.5, -0.5],
    tickvals: labelled,
    ticktext: labelled.map((row) => escapePlotText(shorten(rows[row].name, letters))),
    showgrid: false,
  };
  return { traces: [marks], layout: layoutOf(frame, palette, yaxis, { shapes }) };
}

/** What holds at a step. @param {BandModel} model @param {number} step */
function bandReadout({ rows }, step) {
  const parts = rows.flatMap(({ name, bands, marks }) => [
    ...(bands.some(({ from, to }) => from < step + 0.5 && to > step - 0.5) ? [name] : []),
    ...marks.filter(({ at }) => Math.abs(at - step) <= 0.5).map(({ text }) => text),
  ]);
  return parts.join("; ") || "none";
}

/** @param {string} name @param {string} title @param {string} empty @returns {import("../../charts/lanes/lane_specs.js").LaneSpec} */
const bandSpec = (name, title, empty) => ({
  name,
  title,
  empty,
  plotHeight: (rows) => Math.max(1, rows) * ROW,
  isEmpty: (/** @type {BandModel} */ model) => !model.rows.length,
  draw: drawBands,
  readout: bandReadout,
});

export const THROTTLE = bandSpec("gpu-throttle", "Throttled by", "Not throttled in these steps, as far as the card reports.");
export const EVENTS = bandSpec("gpu-events", "Events", "No Xid, memory error or other event of this card in these steps.");
