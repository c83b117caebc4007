// One card in words: its state, what it is, all its newest values, and what was said of it.

import { el, link } from "../dom.js";
import { clip, count } from "../format.js";
import { named } from "../gpu_words.js";
import { UNKNOWN, columnName, isKnown } from "../quantities.js";
import { onward, runPath } from "../url_state.js";
import { createSortedTable } from "./sorted_table.js";

/** @typedef {import("../types.js").Gpu} Gpu */
/** @typedef {import("../types.js").HostSample} HostSample */
/** @typedef {import("../types.js").GpuEvent} GpuEvent */

/** @type {Record<string, string>} */
const LEVELS = { gone: "overflow", alarm: "overflow", slowed: "warning", stale: "empty", ok: "ok" };

/** @param {Gpu} gpu @returns {import("../types.js").Verdict} */
export function cardVerdict({ rank, name, state, why }) {
  const whose = `The GPU of rank ${rank}${name ? ` (${name})` : ""}`;
  const reasons = why.join("; ");
  /** @type {Record<string, string>} */
  const said = {
    ok: `Nothing stands out: ${whose.slice(0, 1).toLowerCase()}${whose.slice(1)} answers, and is not slowed down.`,
    gone: `${whose} is gone: ${reasons}`,
    alarm: `${whose} needs attention: ${reasons}`,
    slowed: `${whose} is slowed down: ${reasons}`,
    stale: `${whose} was fine when its rank was last heard of: ${reasons}`,
  };
  return { level: LEVELS[state] ?? "empty", parts: [["text", said[state] ?? `${whose}: ${state}`]], links: [] };
}

/** @param {HostSample} sample @returns {import("../types.js").Verdict} */
export const hostVerdict = ({ rank, host }) => ({ level: "empty", parts: [["text", `The host ${host}, as rank ${rank} sees it.`]], links: [] });

/** What does not change. @param {Record<string, any>} about @param {string} host */
export function aboutList(about, host) {
  const facts = [
    ["Host", host],
    ["UUID", about.uuid],
    ["PCI", about.pci_bus_id],
    ["Driver", about.driver_version],
    ["Part of (MIG)", about.parent_uuid],
    ["CPUs", about.cpus],
  ].filter(([, value]) => typeof value === "string" || isKnown(value));
  return el("dl", { class: "fact-list" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "name" }, clip(String(value), 80)))));
}

/** Every column as it was last read: counters that no lane shows stand here. @param {Record<string, number | null>} values @param {Record<string, any>} about */
export function valueList(values, about) {
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

/** @param {import("../types.js").PageContext} ctx */
export function createEventTable(ctx) {
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
