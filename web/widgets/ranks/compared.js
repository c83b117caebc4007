// When each parameter was last compared between the ranks that must hold the same of it. Read once it is opened.

import * as api from "../../api/client.js";
import { el, replace } from "../../format/dom.js";
import { capital, clip, count, plural } from "../../format/numbers.js";
import { createSortedTable } from "../tables/sorted_table.js";

/** @typedef {import("../../types.js").Replicas} Replicas */
/** @typedef {import("../../types.js").ReplicaParameter} ReplicaParameter */

const MOST_ROWS = 200;

/** When, as text: the server searches the last 4,096 steps since the newest start. Pure. @param {ReplicaParameter} one */
export function comparedText({ state, step, unknown_axes: unknown }) {
  if (state === "compared") return `last compared at step ${count(step)}`;
  if (state === "never") return "not compared in the last 4,096 steps";
  if (state === "parts") return "not compared: each rank has another part";
  return unknown.length ? `unknown: nobody says how it lies along ${unknown.join(", ")}` : "unknown: nobody says how it lies";
}

/** All of them in a sentence. Pure. @param {Replicas} answer */
export function comparedSummary({ counts, oldest_step: oldest, parameters }) {
  const { compared = 0, never = 0, parts = 0, unknown = 0 } = counts;
  const total = compared + never + parts + unknown;
  if (!total) return "No parameter is known to be the same on several ranks.";
  const rest = [
    never ? `${count(never)} not compared in the last 4,096 steps` : "",
    parts ? `${count(parts)} of which each rank has another part` : "",
    unknown ? `${count(unknown)} of which it is unknown how they lie` : "",
  ].filter(Boolean);
  const since = compared ? `, none longer ago than step ${count(oldest)}` : "";
  const cut = parameters.length < total ? ` The first ${count(parameters.length)} are listed.` : "";
  return `${capital(`${count(compared)} of ${plural(total, "parameter")} compared between ranks${since}`)}${rest.length ? `; ${rest.join(", ")}` : ""}.${cut}`;
}

/** @param {import("../../types.js").PageContext} ctx @param {() => void} refetch */
export function createComparedTable(ctx, refetch) {
  const text = el("p", {});
  const table = createSortedTable(
    ctx,
    [
      { name: "Parameter", by: (/** @type {ReplicaParameter} */ one) => one.parameter, show: (one) => el("code", { title: one.parameter }, clip(one.parameter, 100)) },
      { name: "The same along", by: (one) => one.alike.join(", "), show: (one) => one.alike.join(", ") },
      { name: "Between ranks", by: (one) => one.step ?? null, show: (one) => comparedText(one), isNumber: false },
      { name: "Its gradient at step", by: (one) => one.gradient_step ?? null, show: (one) => (one.gradient_step === null ? "not compared" : count(one.gradient_step)), isNumber: true },
    ],
    { caption: "When parameters were last compared", name: "compared-table", most: MOST_ROWS },
  );
  const element = el("details", { class: "twin", "data-testid": "compared", hidden: true, toggle: refetch }, el("summary", {}, "When parameters were last compared between ranks"), text, table.element);
  return {
    element,
    /** @param {import("../../types.js").Run} run @param {AbortSignal} signal */
    async update(run, signal) {
      element.hidden = run.ranks.length < 2;
      if (element.hidden || !element.open) return;
      const answer = await api.replicas(ctx.params.id, signal);
      replace(text, comparedSummary(answer));
      table.update(answer.parameters);
    },
  };
}
