// The Hang page, of a run that does not advance: who is missing, how far each rank is, and the stacks of each rank.

import * as api from "../../api/client.js";
import { onward, runPath } from "../../api/url_state.js";
import { el, link, replace } from "../../format/dom.js";
import { clip, count, duration, plural, rankList } from "../../format/numbers.js";
import { UNKNOWN, bytes, isKnown, quantity, time } from "../../format/units.js";
import { copyButton } from "../../widgets/controls/copy_button.js";
import { createDetailCards, createNothing } from "../../widgets/detail_cards.js";
import { runPage } from "../../widgets/run_page.js";
import { createStderrTail } from "../../widgets/stderr_tail.js";
import { createVerdict } from "../../widgets/verdict.js";

/** @typedef {import("../../types.js").Hang} Hang */

/** @param {import("../../types.js").PageContext} ctx @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const nothing = createNothing("Nothing hangs");
  const cards = createDetailCards();
  const tables = el("div", { class: "lanes hang-tables" });
  const stacks = createStackList(run);
  const element = el("div", {}, verdict.element, nothing.element, cards.element, tables, stacks.element);
  let shown = "";

  /** @param {Hang | null} hang @param {number} checkedNs */
  function show(hang, checkedNs) {
    verdict.element.hidden = tables.hidden = stacks.element.hidden = hang === null;
    nothing.update(hang ? null : whyNothing(ctx));
    cards.update(hang ? hangCards(hang, checkedNs) : []);
    if (!hang) return;
    verdict.update(hangVerdict(hang));
    const now = JSON.stringify(hang.groups.length ? [hang.groups, hang.mismatch, hang.culprits] : hang.ranks);
    if (now !== shown) replace(tables, ...(hang.groups.length ? [] : [rankTable(hang)]), ...(hang.mismatch.length > 1 ? [mismatchTable(hang)] : []), ...hang.groups.map((group) => groupTable(group, oddRanks(hang))));
    shown = now;
    stacks.update(hang.ranks, hang.kind);
  }

  return {
    element,
    async update(_, signal) {
      const answer = await api.hang(run, signal);
      show(answer.hang, answer.checked_ns);
    },
    destroy() {},
  };
}

/** @param {import("../../types.js").PageContext} ctx */
function whyNothing({ params, state }) {
  return [
    "No rank has reported that it is stuck, and none has gone silent while others continue. A rank reports it when a step takes far longer than those before, 8 s at least, long before the group's timeout.",
    el("p", {}, "Slow, but not stuck: ", link(runPath(params.id, "collectives", onward(state)), {}, "who keeps the others waiting"), "."),
  ];
}

export default runPage({
  id: "hang",
  title: "Hang",
  key: "h",
  help: "Which rank has not joined, and where each rank is",
  isAlarm: (run) => Boolean(run.hang),
  needsStep: false,
  showsHang: false,
  build,
});

// How far each rank of a group is, and what each called where they called different things.

/** @typedef {import("../../types.js").HangGroup} HangGroup */

/** Rows shown: ranks that stand at one place are one. */
const MOST_ROWS = 16;
const NUMBERS = ["Last called", "Last completed", "Size"];

/** @param {string} caption @param {string} name @param {readonly string[]} heads @param {HTMLTableRowElement[]} rows */
function table(caption, name, heads, rows) {
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col", class: NUMBERS.includes(text) ? "number" : null }, text)));
  return el("div", { class: "panel table-scroll" }, el("table", { class: "dense hang-table", "data-testid": name }, el("caption", { class: "breaks" }, caption), el("thead", {}, head), el("tbody", {}, ...rows)));
}

/** @param {number | null} sequence */
const number = (sequence) => (sequence === null ? UNKNOWN : count(sequence));

/** @param {HangGroup} group @param {readonly number[]} odd who has called something else */
function groupTable(group, odd) {
  const rows = sequenceRows(group, odd).map(({ ranks, enqueued, completed, isMissing, isOdd, has }) =>
    el(
      "tr",
      { "data-missing": isMissing || isOdd },
      el("td", {}, clip(rankList(ranks), 120)),
      el("td", { class: "number" }, number(enqueued)),
      el("td", { class: "number" }, number(completed)),
      el("td", {}, isMissing ? el("strong", { class: "bad" }, "✕ missing") : isOdd ? el("strong", { class: "bad" }, "▲ calls something else") : has === "yes" ? "has joined" : has === "no" ? "has not" : UNKNOWN),
    ),
  );
  return table(groupCaption(group), "hang-group", ["Ranks", "Last called", "Last completed", "In this collective"], rows);
}

/** Where no collective is known that ranks wait in: how far each of them is, equal ones together. @param {Hang} hang */
function rankTable({ ranks, kind }) {
  const all = equalRanks(ranks, kind);
  const rows = all.slice(0, MOST_ROWS).map((group) =>
    el("tr", { "data-missing": group.first.role === "missing" }, el("td", {}, clip(rankList(group.ranks), 120)), el("td", {}, groupState(group, kind)), el("td", { class: "breaks" }, el("code", {}, clip(whereText(group.first.where) || UNKNOWN, 200)))),
  );
  const which = all.length > MOST_ROWS ? `the first ${MOST_ROWS} of ${count(all.length)} places` : "all ranks";
  return table(`No collective is known that ranks wait in; ${which}`, "hang-ranks", ["Ranks", "State", "Where"], rows);
}

/** The sides of a mismatch, most ranks first, with the line of a rank of each. @param {Hang} hang */
function mismatchTable({ mismatch, ranks }) {
  const lineOf = (/** @type {readonly number[]} */ mine) => whereText(ranks.find(({ rank, where }) => where && mine.includes(rank))?.where ?? null) || UNKNOWN;
  const rows = mismatch.map((side) =>
    el(
      "tr",
      {},
      el("td", {}, clip(rankList(side.ranks), 120)),
      el("td", {}, clip(side.op, 60)),
      el("td", { class: "number" }, bytes(side.bytes)),
      el("td", {}, side.dtype || UNKNOWN),
      el("td", { class: "breaks" }, el("code", {}, clip(lineOf(side.ranks), 200))),
    ),
  );
  return table("Ranks disagree", "hang-mismatch", ["Ranks", "Op", "Size", "Type", "Where"], rows);
}

// Where ranks stand: state, line of code, stacks to copy; equal stacks once, with their ranks. Open ones stay open while the
// page is fresh.

/** @typedef {import("../../types.js").HangRank} HangRank */
/** @typedef {{ranks: number[], first: HangRank, all: HangRank[]}} EqualRanks */

/** Stacks that are open at first. */
const OPENED = 2;

/** @param {string} run */
function createStackList(run) {
  const element = el("div", { class: "lanes", "data-testid": "stacks" });
  const more = el("p", { class: "muted figure-notes" });
  let shown = "";
  return {
    element: el("div", {}, element, more),
    /** @param {readonly HangRank[]} ranks @param {string} cause */
    update(ranks, cause) {
      const all = equalRanks(ranks, cause);
      const known = all.slice(0, MOST_ROWS);
      // Times go on; a reader who selects a stack is not to lose it for that.
      const now = JSON.stringify(known.map(({ ranks: mine, first: { silent_s: _, waits_for: __, gpu: ___, ...stays } }) => [mine, stays]));
      if (now !== shown) draw(run, element, known);
      shown = now;
      element.querySelectorAll("[data-state]").forEach((node, i) => (node.textContent = [groupState(known[i], cause), known[i].ranks.length === 1 ? gpuLine(known[i].first.gpu) : ""].filter(Boolean).join("; ")));
      const rest = all.slice(MOST_ROWS).reduce((sum, { ranks: mine }) => sum + mine.length, 0);
      more.textContent = rest ? `${plural(rest, "more rank")}, none of them missing before these.` : "";
    },
  };
}

/** @param {string} run @param {HTMLElement} place @param {readonly EqualRanks[]} groups */
function draw(run, place, groups) {
  const panels = /** @type {NodeListOf<HTMLDetailsElement>} */ (place.querySelectorAll(":scope > details"));
  const opened = new Map([...panels].map((one) => [one.dataset.rank, one.open]));
  replace(place, ...groups.map((group, i) => panel(run, group, opened.get(String(group.first.rank)) ?? (i < OPENED && group.first.role !== "other"))));
}

/** @param {string} run @param {EqualRanks} group @param {boolean} open */
function panel(run, { ranks, first }, open) {
  const where = whereText(first.where);
  const stacks = first.stacks ?? "";
  const head = el("summary", {}, el("strong", { class: first.role === "missing" ? "bad" : null }, `${first.role === "missing" ? "✕ " : ""}${clip(rankList(ranks), 120)}`), " ", el("span", { class: "muted", "data-state": "" }));
  return el(
    "details",
    { class: "panel report stack", open, "data-rank": first.rank, "data-testid": "stack" },
    head,
    where ? el("p", { class: "breaks" }, "At ", el("code", {}, clip(where, 300))) : null,
    stacks ? copyButton(() => stacks, "Copy the stacks") : el("p", { class: "muted" }, noStacks(first)),
    stacks ? el("pre", { tabindex: 0, "aria-label": `Stacks of ${clip(rankList(ranks), 60)}` }, stacks) : null,
    createStderrTail(run, first.rank).element,
  );
}

/** @param {HangRank} rank */
function noStacks(rank) {
  if (rank.has_ended) return "Ended: there is no stack.";
  if (rank.is_silent) return "Nothing has come from it since it stopped, so its stack is not known.";
  return "It has sent no stack.";
}

/** Ranks of which the same is known, but for how long: one stack of a thousand. Missing ones first. Pure. @param {readonly HangRank[]} ranks @param {string} cause @returns {EqualRanks[]} */
export function equalRanks(ranks, cause) {
  /** @type {Map<string, EqualRanks>} */
  const groups = new Map();
  for (const rank of rankOrder(ranks)) {
    const key = JSON.stringify([rankState({ ...rank, silent_s: 0 }, cause), rank.role, rank.where, sameStacks(rank.stacks)]);
    const group = groups.get(key);
    if (!group) groups.set(key, { ranks: [rank.rank], first: rank, all: [rank] });
    else group.ranks.push(rank.rank), group.all.push(rank);
  }
  return [...groups.values()];
}

/** Stacks without what differs between processes that stand at one place: numbers of threads and addresses. @param {string | null} stacks */
const sameStacks = (stacks) => stacks && stacks.replace(/\b0x[0-9a-f]+\b/gi, "0x").replace(/\b(thread|pid|process)\s+\d+/gi, "$1");

/** The state of equal ranks, with the times of the first and the last to fall silent. @param {EqualRanks} group @param {string} cause */
function groupState({ first, all }, cause) {
  const state = rankState(first, cause);
  if (!first.is_silent || all.length === 1) return state;
  const ages = all.map(({ silent_s: s }) => s).filter(isKnown);
  const [least, most] = [time(Math.min(...ages)), time(Math.max(...ages))];
  return ages.length && least !== most ? state.replace(`silent for ${time(first.silent_s)}`, `silent for ${least} to ${most}`) : state;
}

// Texts of a run that does not advance.

/** Causes as text for the page. @type {Record<string, string>} */
const CAUSES = {
  mismatch: "ranks disagree",
  silent: "silent ranks",
  ended: "ranks that ended",
  "data loader": "the data loader",
  absent: "ranks elsewhere in their code",
  order: "collectives in another order",
  communication: "the communication itself",
  busy: "nobody waits in a collective",
  undecided: "not known: not all ranks have reported",
};

/** Where nobody is known to wait it may be an evaluation. @param {Hang} hang @returns {import("../../types.js").Verdict} */
export const hangVerdict = ({ text, kind }) => ({ level: kind === "busy" ? "warning" : "critical", parts: [["text", text]], links: [] });

/** @param {Hang} hang @param {number} checkedNs @returns {import("../../widgets/detail_cards.js").Card[]} */
export function hangCards({ kind, class: wider, since_ns: since, step, missing, silent, waiting }, checkedNs) {
  return [
    { title: "Cause", value: CAUSES[kind] ?? kind, under: wider ?? " " },
    { title: "Stuck for", value: since === null ? UNKNOWN : duration(checkedNs - since), under: step === null ? "no step yet" : `at step ${count(step)}` },
    { title: "Missing", value: listed(missing), level: missing.length ? "critical" : undefined },
    { title: "Silent", value: listed(silent), level: silent.length ? "critical" : undefined },
    { title: "Waiting", value: listed(waiting) },
  ];
}

/** @param {readonly number[]} ranks */
const listed = (ranks) => (ranks.length ? rankList(ranks) : "none");

/** What a group's ranks wait for. @param {HangGroup} group */
export function groupCaption({ group, op, bytes: size, dtype, sequence, ranks }) {
  const call = op ? `${op} of ${[bytes(size), dtype].filter(Boolean).join(" ")}` : "its collectives";
  return `${group}, ${ranks.length} ranks: ${call}${sequence === null ? "" : `, sequence ${count(sequence)}`}`;
}

/** Ranks of a group that stand at the same place make one row, those who are missing first. @param {HangGroup} group @param {readonly number[]} odd who has called something else */
export function sequenceRows({ ranks, last_enqueued: enqueued, last_completed: completed, missing, sequence }, odd) {
  /** @type {Map<string, {ranks: number[], enqueued: number | null, completed: number | null, isMissing: boolean, isOdd: boolean, has: "yes" | "no" | "n/a"}>} */
  const rows = new Map();
  for (const rank of ranks) {
    const [called, ended] = [enqueued[rank] ?? null, completed[rank] ?? null];
    const isMissing = missing.includes(rank);
    const has = called === null || sequence === null ? UNKNOWN : called >= sequence ? "yes" : "no";
    const isOdd = odd.includes(rank);
    const key = JSON.stringify([called, ended, isMissing, isOdd]);
    const row = rows.get(key) ?? { ranks: [], enqueued: called, completed: ended, isMissing, isOdd, has: /** @type {"yes" | "no" | "n/a"} */ (has) };
    row.ranks.push(rank);
    rows.set(key, row);
  }
  return [...rows.values()].sort((a, b) => Number(b.isMissing || b.isOdd) - Number(a.isMissing || a.isOdd) || (a.enqueued ?? -1) - (b.enqueued ?? -1));
}

/** The line of code, as editors open it. @param {import("../../types.js").CodeLine | null} where */
export const whereText = (where) => (where ? `${where.file}:${where.line} in ${where.function}` : "");

/** Who has called something else than most. @param {Hang} hang @returns {number[]} */
export const oddRanks = ({ kind, culprits = [] }) => (kind === "mismatch" ? culprits : []);

/** What a rank is doing, as far as it is known. @param {HangRank} rank @param {string} cause */
export function rankState({ role, is_silent: isSilent, has_ended: hasEnded, is_in_data_loader: loads, silent_s: silent, last_step: step, waits_for: call }, cause) {
  const parts = [
    hasEnded ? "ended" : isSilent ? `silent for ${time(silent)}` : "",
    role === "missing" ? (cause === "mismatch" ? "calls something else" : "missing") : role === "waiting" ? "waiting" : "",
    call ? `in ${call.op} ${call.sequence} (${[bytes(call.bytes), call.dtype].filter(Boolean).join(" ")})` : "",
    loads ? "in its data loader" : "",
    step >= 0 ? `at step ${count(step)}` : "before its first step",
  ];
  return parts.filter(Boolean).join(", ");
}

/** @param {Record<string, number | null> | null} values */
export function gpuLine(values) {
  if (!values) return "";
  if (values.present === 0) return "its GPU does not answer";
  const shown = [["busy", "utilization_gpu_percent"], ["power", "power_w"], ["chip", "temperature_c"], ["memory used", "memory_used_bytes"]];
  const known = shown.filter(([, column]) => isKnown(values[column]));
  return known.length ? `GPU: ${known.map(([name, column]) => `${name} ${quantity(column, values[column])}`).join(", ")}` : "";
}

/** Missing ranks first, then those who wait; ranks with nothing to show are only counted. @param {readonly HangRank[]} ranks */
export function rankOrder(ranks) {
  const weight = (/** @type {HangRank} */ { role, stacks }) => (role === "missing" ? 0 : role === "waiting" ? 2 : 4) + (stacks ? 0 : 1);
  return [...ranks].sort((a, b) => weight(a) - weight(b) || a.rank - b.rank);
}
