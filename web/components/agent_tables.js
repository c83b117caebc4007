// What the agents said of themselves, as tables; each with a line in its place where there is nothing to say.

import { ranksText } from "../agent_words.js";
import { el } from "../dom.js";
import { clip, count, plural } from "../format.js";
import { createSortedTable } from "./sorted_table.js";
import { stateBadge } from "./state_badge.js";

/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {import("../agent_words.js").AgentGroup} AgentGroup */
/** @typedef {import("../agent_words.js").Dropped} Dropped */
/** @typedef {import("../agent_words.js").Account} Account */

/** Rows drawn at most. */
const MOST = 100;
const MOST_LETTERS = 160;

/** @param {string} text @param {number} [length] */
const long = (text, length = MOST_LETTERS) => el("span", { class: "agent-long", title: text.length > length ? text : null }, clip(text, length));

/** A sentence. @param {string} text */
const wide = (text) => el("span", { class: "breaks", title: text.length > MOST_LETTERS ? text : null }, clip(text, MOST_LETTERS));

/** @param {readonly string[]} all @param {string} noun */
const few = (all, noun) => (all.length > 3 ? el("span", { title: clip(all.join(", "), 2000) }, plural(all.length, noun)) : all.map((one) => clip(one, 60)).join(", ") || "not known");

const none = () => el("span", { class: "muted" }, "none");

/** @param {readonly string[]} all */
const listed = (all) => (all.length ? long(all.map((one) => clip(one, 60)).join(", ")) : none());

/**
 * A table, and what to say instead of an empty one.
 * @template R
 * @param {PageContext} ctx @param {string} title @param {string} nothing @param {readonly import("./sorted_table.js").Column<R>[]} columns @param {{caption: string, name: string}} options
 */
function tableOr(ctx, title, nothing, columns, options) {
  const table = createSortedTable(ctx, columns, { ...options, most: MOST });
  const empty = el("p", { class: "panel agent-nothing" }, nothing);
  return {
    element: el("section", { class: "agent-section", "aria-label": title }, el("h2", { class: "part-title" }, title), empty, table.element),
    /** @param {readonly R[]} rows */
    update(rows) {
      empty.hidden = rows.length > 0;
      table.update(rows);
    },
  };
}

/** @param {PageContext} ctx */
export const createGroupTable = (ctx) =>
  tableOr(
    ctx,
    "Agents",
    "No agent has attached.",
    [
      { name: "Ranks", by: (/** @type {AgentGroup} */ row) => row.ranks[0], show: (row) => long(ranksText(row.ranks)) },
      { name: "State", by: (row) => row.state, show: (row) => stateBadge(row.state) },
      { name: "Hosts", by: (row) => row.hosts.length, show: (row) => few(row.hosts, "host") },
      { name: "Devices", by: (row) => row.devices.length, show: (row) => few(row.devices, "device") },
      { name: "Records", by: (row) => row.level, show: (row) => (row.level ? long(row.level) : "all it was asked to") },
      { name: "Dropped", by: (row) => row.droppedCount, show: (row) => (row.dropped.length ? long(`${count(row.droppedCount)}: ${row.dropped.join(", ")}`) : none()), isNumber: true },
      { name: "Faults", by: (row) => row.faults.length, show: (row) => listed(row.faults) },
      { name: "Not observed", by: (row) => row.notObserved, show: (row) => (row.notObserved ? plural(row.notObserved, "module") : none()), isNumber: true },
      { name: "Not fused", by: (row) => row.notFused.length, show: (row) => listed(row.notFused) },
    ],
    { caption: "Ranks whose agents say the same are one row, the worst first", name: "agent-groups" },
  );

/** @param {PageContext} ctx @param {{title: string, nothing: string, first: string, name: string, caption: string, hasWhy: boolean}} words */
const totalsTable = (ctx, { title, nothing, first, name, caption, hasWhy }) =>
  tableOr(
    ctx,
    title,
    nothing,
    [
      { name: first, by: (/** @type {Dropped} */ row) => row.reason, show: (row) => el("code", {}, clip(row.reason, MOST_LETTERS)) },
      { name: "Times", by: (row) => row.total, show: (row) => count(row.total), isNumber: true },
      { name: "Ranks", by: (row) => row.ranks.length, show: (row) => long(ranksText(row.ranks)) },
      { name: "Most on", by: (row) => row.most, show: (row) => `rank ${row.worst}: ${count(row.most)}` },
      ...(hasWhy ? [{ name: "Which means", show: (/** @type {Dropped} */ row) => wide(row.why || "not known to this page") }] : []),
    ],
    { caption, name },
  );

/** @param {PageContext} ctx */
export const createDroppedTable = (ctx) =>
  totalsTable(ctx, { title: "Dropped", nothing: "Nothing was dropped: all that was recorded has been sent, or waits to be.", first: "Reason", name: "agent-dropped", caption: "Records that are lost, by reason, since each agent attached", hasWhy: true });

/** @param {PageContext} ctx */
export const createFaultTable = (ctx) =>
  totalsTable(ctx, { title: "Faults", nothing: "No agent has failed anywhere.", first: "Place", name: "agent-faults", caption: "Where the agent itself failed; it goes on, and leaves a place that fails too often", hasWhy: false });

/** @param {PageContext} ctx @param {{title: string, nothing: string, what: string, name: string, caption: string}} words */
const accountTable = (ctx, { title, nothing, what, name, caption }) =>
  tableOr(
    ctx,
    title,
    nothing,
    [
      { name: what, by: (/** @type {Account} */ row) => row.what, show: (row) => el("span", { class: "name", title: row.what.length > 80 ? row.what : null }, clip(row.what || "(the model)", 80)) },
      { name: "Why", by: (row) => row.why, show: (row) => wide(row.why) },
      { name: "Ranks", by: (row) => row.ranks.length, show: (row) => long(ranksText(row.ranks)) },
    ],
    { caption, name },
  );

/** @param {PageContext} ctx */
export const createUnobservedTable = (ctx) =>
  accountTable(ctx, { title: "Not observed", nothing: "Every module that was to be observed is.", what: "Module", name: "agent-not-observed", caption: "Modules whose values nobody sees: not to be taken for clean ones" });

/** @param {PageContext} ctx */
export const createUnfusedTable = (ctx) =>
  accountTable(ctx, { title: "Not fused", nothing: "Every device is read in the fastest way there is for it, as far as agents say.", what: "Device", name: "agent-not-fused", caption: "Devices that are read more slowly than they could be" });
