// Name, state and reach of a run, its report, and everything that is missing from what is shown.

import { el, link, replace } from "../dom.js";
import { age, clip, count } from "../format.js";
import { rankNotes } from "../rank_notes.js";
import { clockFrom } from "../server_clock.js";
import { runPath } from "../url_state.js";
import { createRunReport } from "./run_report.js";
import { stateBadge } from "./state_badge.js";

/** Notes shown before the rest folds away. */
const MOST_NOTES = 3;
const MOST_LETTERS = 240;

/** @param {{tellsHang: boolean}} options whether it says that the run hangs, as every page but Hang does */
export function createRunHeader({ tellsHang }) {
  const title = el("h1", {});
  const badge = el("span", {});
  const facts = el("span", { class: "facts" });
  const notes = el("div", { class: "notes", "data-testid": "run-notes" });
  const problem = el("p", { class: "problem", role: "status", hidden: true });
  const hang = el("p", { class: "hang-note", "data-testid": "hang-note", hidden: true });
  const report = createRunReport();
  const element = el("div", {}, el("header", { class: "run-header" }, title, badge, facts, report.button), hang, problem, notes, report.dialog);
  /** @type {import("../types.js").Run | null} */
  let run = null;
  let nowNs = clockFrom();

  function tick() {
    if (!run) return;
    facts.textContent = factsOf(run, nowNs()).join(" · ");
    drawNotes(notes, rankNotes(run, nowNs()));
  }

  return {
    element,
    tick,
    /** @param {import("../types.js").Run} next @param {() => number} clock the server's */
    update(next, clock) {
      run = next;
      nowNs = clock;
      title.textContent = clip(next.title || next.name);
      title.title = next.name;
      replace(badge, stateBadge(next.state));
      report.update(next);
      problem.hidden = true;
      hang.hidden = !tellsHang || !next.hang;
      replace(hang, "■ It hangs. ", clip(next.hang ?? "", 400), " ", link(runPath(next.id, "hang"), {}, "What is known"));
      tick();
    },
    /** @param {string} text */
    problem(text) {
      problem.textContent = text;
      problem.hidden = false;
    },
  };
}

/** @param {import("../types.js").Run} run @param {number} nowNs */
function factsOf(run, nowNs) {
  const step = run.last_step === null ? "no step yet" : `step ${count(run.last_step)}`;
  const ranks = `${run.ranks_reporting} of ${run.world_size} ranks`;
  return [step, ranks, `last seen ${age(nowNs - run.last_seen_ns)}`, `started ${age(nowNs - run.started_ns)}`];
}

/** @param {HTMLElement} place @param {string[]} notes */
function drawNotes(place, notes) {
  if (place.dataset.shown === JSON.stringify(notes)) return; // an opened list stays open
  const open = place.querySelector("details")?.open ?? false;
  place.dataset.shown = JSON.stringify(notes);
  const item = (/** @type {string} */ text) => el("li", { title: text }, clip(text, MOST_LETTERS));
  const rest = notes.slice(MOST_NOTES);
  replace(
    place,
    notes.length > 0 && el("ul", {}, ...notes.slice(0, MOST_NOTES).map(item)),
    rest.length > 0 && el("details", { open }, el("summary", {}, `${rest.length} more`), el("ul", {}, ...rest.map(item))),
  );
}
