// Hang: a run that does not advance: who is missing, how far each rank is, and where in its code it stands.

import * as api from "../api.js";
import { createFactCards, createNothing } from "../components/fact_cards.js";
import { groupTable, mismatchTable, rankTable } from "../components/hang_tables.js";
import { mountRunPage } from "../components/run_page.js";
import { createStackList } from "../components/stack_list.js";
import { createVerdict } from "../components/verdict.js";
import { el, link, replace } from "../dom.js";
import { hangCards, hangVerdict, oddRanks } from "../hang_words.js";
import { onward, runPath } from "../url_state.js";

/** @typedef {import("../types.js").Hang} Hang */

/** @param {import("../types.js").PageContext} ctx @returns {import("../components/run_page.js").RunView} */
function build(ctx) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const nothing = createNothing("Nothing hangs");
  const cards = createFactCards();
  const tables = el("div", { class: "lanes hang-tables" });
  const stacks = createStackList();
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

/** @param {import("../types.js").PageContext} ctx */
function whyNothing({ params, state }) {
  return [
    "No rank has said that it stands still, and none has gone silent while others go on. A rank says so when a step takes far longer than its others did, 8 s at the least, long before the group's timeout.",
    el("p", {}, "Slow, but not stuck: ", link(runPath(params.id, "collectives", onward(state)), {}, "who keeps the others waiting"), "."),
  ];
}

/** @type {import("../types.js").Page} */
export default {
  id: "hang",
  title: "Hang",
  path: "/runs/{id}/hang",
  mount: (root, ctx) => mountRunPage(root, ctx, "Hang", () => build(ctx), { needsStep: false, tellsHang: false }),
};
