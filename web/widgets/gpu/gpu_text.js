// Texts about the GPUs of a run: the verdict, its hosts, and the values of a card. Pure.

import { onward, runPath } from "../../api/url_state.js";
import { count, plural, rankList } from "../../format/numbers.js";
import { UNKNOWN, bandwidth, bytesOf, isKnown, quantity } from "../../format/units.js";

/** @typedef {import("../../types.js").Gpus} Gpus */
/** @typedef {import("../../types.js").Gpu} Gpu */
/** @typedef {import("../../types.js").HostSample} HostSample */

/** A state as a shape and a label. @type {Record<string, {shape: string, label: string, rank: number}>} */
const STATES = {
  gone: { shape: "✕", label: "gone", rank: 0 },
  alarm: { shape: "■", label: "alarm", rank: 1 },
  slowed: { shape: "▲", label: "throttled", rank: 2 },
  stale: { shape: "◌", label: "stale", rank: 3 },
  ok: { shape: "●", label: "ok", rank: 4 },
};

/** @param {string} state */
export const stateOf = (state) => STATES[state] ?? { shape: "?", label: state, rank: 3 };

/** The page's first sentence. @param {Gpus} answer @param {string} run @param {Parameters<typeof onward>[0]} [state] @returns {import("../../types.js").Verdict} */
export function gpuVerdict({ gpus, hosts }, run, state = {}) {
  if (!gpus.length) {
    const text = hosts.length ? `No GPU is recorded; ${plural(hosts.length, "host sample")} below.` : "No GPU is recorded.";
    return { level: "empty", parts: [["text", text]], links: [] };
  }
  const bad = gpus.filter(({ state }) => state === "gone" || state === "alarm");
  const slowed = gpus.filter(({ state }) => state === "slowed");
  const worst = bad[0] ?? slowed[0];
  const level = bad.length ? "critical" : slowed.length ? "warning" : "ok";
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
    const and = slowedCards ? ` ${count(slowedCards)} more ${slowedCards === 1 ? "is" : "are"} throttled.` : "";
    return `${count(badCards)} ${of} need${badCards === 1 ? "s" : ""} attention: rank ${first.rank}, ${first.why[0] ?? first.state}.${and}`;
  }
  if (slowed.length) return `${count(slowedCards)} ${of} ${slowedCards === 1 ? "is" : "are"} throttled: ${rankList(unique(slowed))}, ${slowed[0].why[0] ?? "throttled"}.`;
  const stale = cardCount(gpus.filter(({ state }) => state === "stale"));
  if (stale) return `Nothing stands out, as far as is known: ${count(stale)} ${of} ${stale === 1 ? "has" : "have"} gone silent with ${stale === 1 ? "its" : "their"} rank.`;
  return `Nothing stands out: all ${plural(cardCount(gpus), "GPU")} answer, and none is throttled.`;
}

/** @param {Gpu[]} gpus */
const unique = (gpus) => [...new Set(gpus.map(({ rank }) => rank))];

/** @param {string} run @param {{rank: number, key: string}} gpu @param {Parameters<typeof onward>[0]} [state] */
export const gpuPath = (run, { rank, key }, state = {}) => runPath(run, "gpu", onward(state, { rank, key }));

/** Names of hosts, that of the worst card first, as the cards come. @param {Gpus} answer */
export const hostNames = ({ gpus, hosts }) => [...new Set([...gpus, ...hosts].map(({ host }) => host))];

/** The newest sample of a host: each of its ranks may send some. @param {Pick<Gpus, "hosts">} answer @param {string} name */
export function newestSample({ hosts }, name) {
  return hosts.filter(({ host }) => host === name).reduce((/** @type {HostSample | null} */ a, b) => (a && a.time_ns >= b.time_ns ? a : b), null);
}

/** @param {HostSample | null} sample */
export function hostLine(sample) {
  if (!sample) return "no sample of the host";
  const { values: v, about } = sample;
  const cpus = isKnown(about.cpus) && about.cpus ? ` on ${plural(about.cpus, "CPU")}` : "";
  const load = isKnown(v.load_1m) ? v.load_1m.toFixed(1) : UNKNOWN;
  const disks = Object.keys(v).filter((name) => /^disk_.*_free_bytes$/.test(name)).map((name) => v[name]).filter(isKnown);
  const room = disks.length ? quantity("_bytes", Math.min(...disks)) : UNKNOWN;
  const network = [v.network_received_bytes_per_s, v.network_sent_bytes_per_s].map(bandwidth).join(" in, ");
  return `CPU ${quantity("_percent", v.cpu_percent)}, load ${load}${cpus}, memory ${bytesOf(v.memory_used_bytes, v.memory_total_bytes)}, least disk free ${room}, network ${network} out`;
}

/** Why ranks have no card, the same text once. @param {Gpus["notes"]} notes @returns {string[]} */
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
