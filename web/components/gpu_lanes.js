// The lanes of one card, and those of its host: which columns, in which unit, with which limit.

import { plainLines } from "../line_drawing.js";
import { points, readLines, valueAt } from "../lines_model.js";
import { column, fact, lineFigure, sum, timeShare } from "../gpu_series.js";
import { UNKNOWN } from "../quantities.js";
import { el } from "../dom.js";

/** @typedef {import("../types.js").GpuLanes} GpuLanes */
/** @typedef {import("../lines_model.js").LinesModel} LinesModel */
/** @typedef {import("../gpu_series.js").Source} Source */
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
    limits: [line("SM maximum", fact("maxima", "sm_clock_mhz")), line("memory maximum", fact("maxima", "memory_clock_mhz"))],
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
    title: "Clocks held down, of the time",
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
    title: "Disk room",
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

/** @param {LineLane} lane @param {import("../gpu_series.js").PlacedLanes} lanes */
export const figureOf = ({ lines, limits = [] }, lanes) => lineFigure(lanes, [...lines, ...limits]);

/** @param {LineLane} lane @returns {import("./lane_specs.js").LaneSpec} */
export function lineSpec(lane) {
  const plain = plainLines({ colours: [...COLOURS.slice(0, lane.lines.length)], unit: "", fromZero: true });
  return {
    name: lane.name,
    title: `${lane.title}${lane.unit && `, ${lane.unit}`}`,
    unit: lane.unit,
    empty: `${UNKNOWN}: not recorded here, or not supported.`,
    plotHeight: () => 72,
    read: readLines,
    isEmpty: (/** @type {LinesModel} */ model) => !model.series.slice(0, lane.lines.length).some((series) => points(series).length),
    draw: (model, frame, palette) => withLimits(plain(model, frame, palette), model, lane),
    readout: (model, step) => readout(model, step, lane),
    legend: lane.lines.length + (lane.limits?.length ?? 0) > 1 ? () => legend(lane) : undefined,
  };
}

/** Limits are dotted and not as strong as what they limit. @param {import("../figure_drawing.js").Drawing} drawing @param {LinesModel} model @param {LineLane} lane */
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
  const item = (/** @type {string} */ look, /** @type {string} */ text) => el("span", { class: "legend-item" }, el("span", { class: "swatch is-line", "data-look": look, "aria-hidden": "true" }), text);
  return el("div", { class: "legend lane-legend" }, ...lines.map(({ name }, i) => item(COLOURS[i], name)), ...limits.map(({ name }) => item("limit", name)));
}

