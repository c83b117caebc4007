// What became of a trace that was asked for, in words. Pure.

import { ApiError } from "./api.js";
import { clip, count, duration, plural, rankList, steps } from "./format.js";

/** @typedef {"pending" | "accepted" | "done" | "refused" | "expired" | "withdrawn"} RankState */
/** @typedef {{rank: number, state: string, first_step: number | null, last_step: number | null, reason: string, live: boolean}} CommandRank */
/**
 * @typedef {object} Command
 * @property {number} id
 * @property {string} kind
 * @property {number} [steps] of a trace
 * @property {string[]} [modules]
 * @property {number[] | null} ranks null: all
 * @property {number} created_ns
 * @property {number | null} withdrawn_ns
 * @property {CommandRank[]} states
 */
/** @typedef {{steps: number, modules: string[], ranks: number[] | null}} TraceAsked */
/** @typedef {Pick<import("./types.js").RankInfo, "rank" | "last_step">} Reached how far a rank has come */

export const MOST_STEPS = 1000;
const MOST_REASON = 200;
const MINUTE_NS = 60e9;
const OPEN = new Set(["pending", "accepted"]);

/** Whether more is to come of it. @param {Command} command */
export const isOpen = ({ states }) => states.some(({ state }) => OPEN.has(state));

/** Whether it can be taken back. @param {Command} command */
export const isPending = ({ states }) => states.some(({ state }) => state === "pending");

/** The first step that is there in full, and a rank that has it; null as long as none has. @param {Command} command */
export function arrival({ states }) {
  const done = states.filter(({ state, first_step: first }) => state === "done" && first !== null);
  const [first] = [...done].sort((a, b) => Number(a.first_step) - Number(b.first_step) || a.rank - b.rank);
  return first ? { step: Number(first.first_step), rank: first.rank } : null;
}

/** "10 steps of blocks.*, ranks 0 and 1". @param {Command} command */
export function askedText({ steps: n = 1, modules = [], ranks }) {
  const what = modules.length ? ` of ${clip(modules.join(", "), 80)}` : "";
  return `${plural(n, "step")}${what}, ${ranks === null ? "all ranks" : rankList(ranks)}`;
}

/** Of a rank's traced steps how many have come to the server. @param {CommandRank} at @param {Reached | undefined} reached */
function stepsIn({ state, first_step: first, last_step: last }, reached) {
  if (first === null || last === null) return 0;
  const newest = state === "done" ? last : Math.min(last, reached?.last_step ?? -1);
  return Math.max(0, newest - first + 1);
}

/** Share of all that was asked for that has come, 0 to 1. @param {Command} command @param {readonly Reached[]} ranks */
export function progress({ states, steps: n = 1 }, ranks) {
  const wanted = states.filter(({ state }) => OPEN.has(state) || state === "done");
  const got = wanted.map((at) => (at.state === "done" ? 1 : Math.min(1, stepsIn(at, ranks.find(({ rank }) => rank === at.rank)) / n)));
  return got.length ? got.reduce((a, b) => a + b, 0) / got.length : 0;
}

/** One line for the ranks that are alike: "ranks 0-3: traced, steps 100-109". @param {Command} command @param {readonly Reached[]} ranks */
export function rankLines(command, ranks) {
  /** @type {Map<string, number[]>} */
  const alike = new Map();
  for (const at of command.states) {
    const words = stateText(at, ranks.find(({ rank }) => rank === at.rank), command.steps ?? 1);
    alike.set(words, [...(alike.get(words) ?? []), at.rank]);
  }
  return [...alike].map(([words, mine]) => `${rankList(mine)}: ${words}`);
}

/** @param {CommandRank} at @param {Reached | undefined} reached @param {number} n */
function stateText(at, reached, n) {
  const { state, first_step: first, last_step: last, reason, live } = at;
  const span = first !== null && last !== null ? `, ${steps({ start: first, stop: last + 1 })}` : first !== null ? `, from step ${count(first)}` : "";
  const why = reason ? `: ${clip(reason, MOST_REASON)}` : "";
  switch (state) {
    case "pending":
      return live ? "has not answered yet; it begins at its next step" : "has not answered, and has not been heard of for a while";
    case "accepted":
      return `tracing${span}; ${count(Math.min(n, stepsIn(at, reached)))} of ${count(n)} here`;
    case "done":
      return `traced${span}${why}`;
    case "refused":
      return `refused${why}`;
    case "expired":
      return `given up${why}`;
    case "withdrawn":
      return "taken back before it began";
    default:
      return clip(state, 40);
  }
}

/** @param {Command} command @param {number} nowNs */
export function headline(command, nowNs) {
  const what = `Trace of ${askedText(command)}`;
  if (isOpen(command)) return `${what}: under way.`;
  const passedNs = nowNs - command.created_ns;
  const ago = passedNs < MINUTE_NS ? "asked just now" : `asked ${duration(passedNs)} ago`; // a line that counts seconds could not be read
  if (arrival(command)) return `${what}, ${ago}: here.`;
  const isWithdrawn = command.states.some(({ state }) => state === "withdrawn");
  return `${what}, ${ago}: ${isWithdrawn ? "taken back" : "did not come about"}.`;
}

/** Module patterns as they are typed, one a line or between commas. @param {string} text */
export const patternsOf = (text) => text.split(/[\n,]/).map((one) => one.trim()).filter(Boolean);

/**
 * "0, 2-5" as ranks; null: all. Throws a sentence for what is no list of ranks.
 * @param {string} text @returns {number[] | null}
 */
export function ranksOf(text) {
  const parts = text.split(/[\s,]+/).filter(Boolean);
  if (!parts.length) return null;
  const ranks = parts.flatMap((part) => {
    const [, low, high = low] = /^(\d{1,6})(?:-(\d{1,6}))?$/.exec(part) ?? [];
    const count = Number(high) - Number(low) + 1;
    if (low === undefined || count < 1 || count > 100_000) throw new Error(`"${clip(part, 40)}" is no rank: write ranks as 0, 2-5.`);
    return Array.from({ length: count }, (_, i) => Number(low) + i);
  });
  return [...new Set(ranks)].sort((a, b) => a - b);
}

/** Why it could not be asked for, and what to do. @param {unknown} error */
export function failureText(error) {
  if (!(error instanceof ApiError)) return error instanceof Error ? error.message : String(error);
  if (error.status === 403) return "Your token may look but not ask for traces: that needs the role admin.";
  if (error.code === "not_live") return `Nobody is there to trace: ${error.message}.`;
  if (error.code === "not_pending") return "Every rank has answered already: it cannot be taken back any more.";
  if (error.code === "too_many_commands") return "Too many wait for an answer already: withdraw some, or wait for them.";
  if (error.status === 429) return "The server has too much to do just now: try again in a moment.";
  if (error.status === 0) return error.message;
  return `The server did not take it: ${error.message}.`;
}
