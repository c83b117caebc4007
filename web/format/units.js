// Quantities of machines as text, each with its unit; what is not known is "n/a", never 0. Pure.

import { count, seconds } from "./numbers.js";

export const UNKNOWN = "n/a";

/** @typedef {number | null | undefined} Quantity */

/** @param {unknown} value @returns {value is number} */
export const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

/** @param {number} value */
const short = (value) => String(Number(value.toPrecision(3)));

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const DECIMAL = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];

/** @param {number} value @param {readonly string[]} units @param {number} base */
function scaled(value, units, base) {
  let power = 0;
  let rest = value;
  while (Math.abs(rest) >= base && power < units.length - 1) {
    rest /= base;
    power += 1;
  }
  return `${short(rest)} ${units[power]}`;
}

/** 1 MiB. @param {Quantity} value */
export const bytes = (value) => (isKnown(value) ? scaled(value, BINARY, 1024) : UNKNOWN);

/** 210 GB/s, in powers of ten as nccl-tests and vendors count it. @param {Quantity} value */
export const bandwidth = (value) => (isKnown(value) ? scaled(value, DECIMAL, 1000) : UNKNOWN);

/** 30 ms; 0, and what is no microsecond, is 0 ms. @param {Quantity} value */
export const time = (value) => (isKnown(value) ? (Math.abs(value) < 0.5e-6 ? "0 ms" : seconds(value)) : UNKNOWN);

/** 94 % of a share of 0.94. @param {Quantity} value */
export const percent = (value) => (isKnown(value) ? `${short(value * 100)} %` : UNKNOWN);

/** By the end of a column's name, the longest first: how its values are written, or the unit of whole ones. @type {[string, string | ((value: number) => string)][]} */
const BY_SUFFIX = [
  ["_bytes_per_s", bandwidth],
  ["_bytes", bytes],
  ["_percent", (value) => `${short(value)} %`],
  ["_mhz", "MHz"],
  ["_ns", (value) => time(value / 1e9)],
  ["_w", "W"],
  ["_c", "°C"],
  ["_s", time],
];

/** The value of a column in its own unit. @param {string} column @param {Quantity} value */
export function quantity(column, value) {
  if (!isKnown(value)) return UNKNOWN;
  const [, unit] = BY_SUFFIX.find(([suffix]) => column.endsWith(suffix)) ?? [];
  if (unit === undefined) return Number.isInteger(value) ? count(value) : short(value);
  return typeof unit === "string" ? `${Math.round(value)} ${unit}` : unit(value);
}

/** "sm_clock_mhz" as "SM clock": the unit stands with the value. @param {string} column */
export function columnName(column) {
  const suffix = BY_SUFFIX.find(([end]) => column.endsWith(end))?.[0] ?? "";
  const parts = column.slice(0, column.length - suffix.length).split("_").map((word) => CAPITALS[word] ?? word);
  const text = parts.join(" ");
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** @type {Record<string, string>} */
const CAPITALS = { sm: "SM", gpu: "GPU", cpu: "CPU", ecc: "ECC", pcie: "PCIe", nvlink: "NVLink", rss: "RSS", shm: "/dev/shm", cwd: "working directory" };

/** Of two quantities of one unit: "61 of 80 GiB". @param {Quantity} part @param {Quantity} whole */
export function bytesOf(part, whole) {
  return isKnown(part) && isKnown(whole) ? `${bytes(part)} of ${bytes(whole)}` : bytes(part);
}
