// Environment: what is wrong, or odd, with the ranks' machines and settings, and what to type; and the links between them.

import * as api from "../api.js";
import { createNothing } from "../components/fact_cards.js";
import { createFactSections } from "../components/fact_sections.js";
import { createFindingList } from "../components/finding_list.js";
import { createLinkMatrix } from "../components/link_matrix.js";
import { pictureOf } from "../components/picture.js";
import { mountRunPage } from "../components/run_page.js";
import { createVerdict } from "../components/verdict.js";
import { el } from "../dom.js";
import { environmentVerdict, mergedFindings } from "../environment_words.js";

const whyNone = () => [
  "Every rank in training sends its facts once, soon after it has attached: torch, CUDA, NCCL, driver, variables, network.",
  el("p", {}, el("code", {}, "rangewatch doctor"), " says the same, and more, of a machine without a training."),
];

/** @param {import("../types.js").PageContext} ctx @returns {import("../components/run_page.js").RunView} */
function build(ctx) {
  const run = ctx.params.id;
  const verdict = createVerdict();
  const nothing = createNothing("No rank has told of its environment");
  const odd = createFindingList("Ranks that differ", "odd-ranks");
  const findings = createFindingList("Findings", "findings");
  const links = createLinkMatrix(ctx);
  const facts = createFactSections();
  const factsTitle = el("h2", { class: "part-title" }, "Facts of the ranks");
  const noLinks = el("p", { class: "muted figure-notes" }, "No linkcheck belongs to this run. ", el("code", {}, "rangewatch linkcheck --post"), " under torchrun or Slurm tests every pair of ranks, and is shown on this page of a run of its own.");
  const element = el("div", {}, verdict.element, nothing.element, el("div", { class: "lanes" }, odd.element, findings.element, links.element, noLinks), factsTitle, facts.element);

  return {
    element,
    async update(about, signal) {
      const answer = await api.environment(run, signal);
      const merged = mergedFindings(answer.ranks);
      const isEmpty = !answer.ranks.length;
      verdict.element.hidden = isEmpty;
      verdict.update(environmentVerdict(answer, merged));
      nothing.update(isEmpty && answer.linkcheck === null ? whyNone() : null);
      odd.update(answer.odd, answer.ranks.length);
      findings.update(merged, answer.ranks.length);
      links.update(answer.linkcheck, about.now_ns ?? Date.now() * 1e6, pictureOf(about, null));
      noLinks.hidden = answer.linkcheck !== null;
      factsTitle.hidden = isEmpty;
      facts.update(answer.ranks);
    },
    destroy() {
      links.destroy();
    },
  };
}

/** @type {import("../types.js").Page} */
export default {
  id: "environment",
  title: "Environment",
  path: "/runs/{id}/environment",
  mount: (root, ctx) => mountRunPage(root, ctx, "Environment", () => build(ctx), { needsStep: false }),
};
