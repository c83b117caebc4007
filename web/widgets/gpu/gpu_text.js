// Texts about the GPUs of a run: the verdict, groups by host, and the figures of a card. Pure.

import { onward, runPath } from "../../api/url_state.js";
import { count, plural, rankList } from "../../format/numbers.js";
import { UNKNOWN, bandwidth, bytesOf, isKnown, quantity } from "../../format/units.js";

/** @typedef {import("../../types.js").Gpus} Gpus */
/** @typedef {import("../../types.js").Gpu} Gpu */
/** @typedef {import("../../types.js").HostSample} HostSample */
/** @typedef {{host: string, gpus: Gpu[], sample: HostSample | null}} HostGroup */

/** A state as a shape and a word. @type {Record<string, {shape: string, word: string, rank: number}>} */
const STATES = {
  gone: { shape: "✕", word: "gone", rank: 0 },
  alarm: { shape: "■", word: "alarm", rank: 1 },
  slowed: { shape: "▲", word: "slowed", rank: 2 },
  stale: { shape: "◌", word: "stale", rank: 3 },
  ok: { shape: "●", word: "ok", rank: 4 },
};

/** @param {string} state */
export const stateOf = (state) => STATES[state] ?? { shape: "?", word: state, rank: 3 };

/** The page's first sentence. @param {Gpus} answer @param {string} run @param {Parameters<typeof onward>[0]} [state] @returns {import("../../types.js").Verdict} */
export function gpuVerdict({ gpus, hosts }, run, state = {}) {
  if (!gpus.length) {
    const text = hosts.length ? `No GPU is recorded; ${plural(hosts.length, "host sample")} below.` : "No GPU is recorded.";
    return { level: "empty", parts: [["text", text]], links: [] };
  }
  const bad = gpus.filter(({ state }) => state === "gone" || state === "alarm");
  const slowed = gpus.filter(({ state }) => state === "slowed");
  const worst = bad[0] ?? slowed[0];
  const level = bad.length ? "overflow" : slowed.length ? "warning" : "ok";
  const links = worst ? [{ label: `GPU of rank ${worst.rank}`, path: gpuPath(run, worst, state) }] : [];
  return { level, parts: [["text", sentence(gpus, bad, slowed)]], links };
}

/** How many cards: several ranks may use one, each with its own samples. @param {Gpu[]} gpus */
export const cardCount = (gpus) => new Set(gpus.map(({ host, key }) => JSON.stringify([host, key]))).size;

/** @param {Gpu[]} gpus @param {Gpu[]} bad @param {Gpu[]} slowed */
function sentence(gpus, bad, slowed) {
  const of = `of ${plural(cardCount(gpus), "GPU")}`;
  const [badCards, slowedCards] = [cardCount(bad), cardCount(slowed)];
  if (bad.length) {
    const first = bad[0];
    const and = slowedCards ? ` ${count(slowedCards)} more ${slowedCards === 1 ? "is" : "are"} slowed.` : "";
    return `${count(badCards)} ${of} need${badCards === 1 ? "s" : ""} attention: rank ${first.rank}, ${first.why[0] ?? first.state}.${and}`;
  }
  if (slowed.length) return `${count(slowedCards)} ${of} ${slowedCards === 1 ? "is" : "are"} slowed down: ${rankList(unique(slowed))}, ${slowed[0].why[0] ?? "throttled"}.`;
  const stale = cardCount(gpus.filter(({ state }) => state === "stale"));
  if (stale) return `Nothing stands out, as far as is known: ${count(stale)} ${of} ${stale === 1 ? "has" : "have"} gone silent with ${stale === 1 ? "its" : "their"} rank.`;
  return `Nothing stands out: all ${plural(cardCount(gpus), "GPU")} answer, and none is slowed down.`;
}

/** @param {Gpu[]} gpus */
const unique = (gpus) => [...new Set(gpus.map(({ rank }) => rank))];

/** @param {string} run @param {{rank: number, key: string}} gpu @param {Parameters<typeof onward>[0]} [state] */
export const gpuPath = (run, { rank, key }, state = {}) => runPath(run, "gpu", onward(state, { rank, key }));

/** Hosts with their cards, the host of the worst card first, as the cards come. @param {Gpus} answer @returns {HostGroup[]} */
export function byHost({ gpus, hosts }) {
  /** @type {Map<string, HostGroup>} */
  const groups = new Map();
  const group = (/** @type {string} */ host) => {
    const found = groups.get(host) ?? { host, gpus: [], sample: null };
    groups.set(host, found);
    return found;
  };
  for (const gpu of gpus) group(gpu.host).gpus.push(gpu);
  for (const sample of hosts) {
    const found = group(sample.host);
    if (!found.sample || sample.time_ns > found.sample.time_ns) found.sample = sample;
  }
  return [...groups.values()];
}

/** What is read at a glance. @param {Gpu} gpu @returns {{name: string, text: string, share: number | null}[]} */
export function glanceDetails({ values: v }) {
  const share = (/** @type {import("../../format/units.js").Quantity} */ part, /** @type {import("../../format/units.js").Quantity} */ whole) => (isKnown(part) && isKnown(whole) && whole > 0 ? Math.min(1, part / whole) : null);
  return [
    { name: "busy", text: quantity("_percent", v.utilization_gpu_percent), share: share(v.utilization_gpu_percent, 100) },
    { name: "power", text: quantity("_w", v.power_w), share: share(v.power_w, v.power_limit_w) },
    { name: "chip", text: quantity("_c", v.temperature_c), share: heat(v.temperature_c, v.slowdown_margin_c) },
    { name: "mem", text: quantity("_bytes", v.memory_used_bytes), share: share(v.memory_used_bytes, v.memory_total_bytes) },
  ];
}

/** How much of the way to where it slows down. @param {import("../../format/units.js").Quantity} now_c @param {import("../../format/units.js").Quantity} margin_c */
const heat = (now_c, margin_c) => (isKnown(now_c) && isKnown(margin_c) && now_c > 0 ? Math.max(0, Math.min(1, now_c / (now_c + margin_c))) : null);

/** @param {HostSample | null} sample */
export function hostLine(sample) {
  if (!sample) return "no sample of the host";
  const { values: v, about } = sample;
  const cpus = isKnown(about.cpus) && about.cpus ? ` on ${plural(about.cpus, "CPU")}` : "";
  const load = isKnown(v.load_1m) ? v.load_1m.toFixed(1) : UNKNOWN;
  const disks = Object.keys(v).filter((name) => /^disk_.*_free_bytes$/.test(name)).map((name) => v[name]).filter(isKnown);
  const room = disks.length ? quantity("_bytes", Math.min(...disks)) : UNKNOWN;
  const network = [v.network_received_bytes_per_s, v.network_sent_bytes_per_s].map(bandwidth).join(" in, ");
  return `CPU ${quantity("_percent", v.cpu_percent)}, load ${load}${cpus}, memory ${bytesOf(v.memory_used_bytes, v.memory_total_bytes)}, least disk room ${room}, network ${network} out`;
}

/** Why ranks have no card, the same words once. @param {Gpus["notes"]} notes @returns {string[]} */
export function noteLines(notes) {
  /** @type {Map<string, number[]>} */
  const ranks = new Map();
  for (const { rank, message } of notes) ranks.set(message, [...(ranks.get(message) ?? []), rank]);
  return [...ranks].map(([message, mine]) => `${rankList(mine)}: ${message}`);
}

/** The value of a column by its name where it stands for one: throttle reasons, recovery action. @param {string} column @param {number | null} value @param {Record<string, any>} about */
export function named(column, value, about) {
  const names = about.names?.[column];
  if (!isKnown(value) || typeof names !== "object" || names === null) return quantity(column, value);
  if (/_reasons$/.test(column)) return bitNames(value, names).join(", ") || "none";
  return String(names[String(value)] ?? quantity(column, value));
}

/** @param {number} bits @param {Record<string, unknown>} names by bit @returns {string[]} */
export function bitNames(bits, names) {
  return Object.entries(names).filter(([bit]) => Math.floor(bits / Number(bit)) % 2 === 1).map(([, name]) => String(name).replaceAll("_", " "));
}
