// The Overview page of a run: the verdict, a few figures, all lanes over one step axis, and the run's title, tags and
// note.

import * as api from "../../api/client.js";
import { runsPath } from "../../api/run_query.js";
import { deferUntil } from "../../api/live.js";
import { shownRange } from "../../api/url_state.js";
import { createStatisticLegend } from "../../charts/legend.js";
import { el, link, replace } from "../../format/dom.js";
import { clip, plural } from "../../format/numbers.js";
import { copyButton } from "../../widgets/controls/copy_button.js";
import { createRangeBar } from "../../widgets/controls/range_bar.js";
import { createComparedTable } from "../../widgets/ranks/compared.js";
import { createRankMap } from "../../widgets/ranks/rank_map.js";
import { runPage } from "../../widgets/run_page.js";
import { createTracePanel } from "../../widgets/trace_panel.js";
import { createStderrTails } from "../../widgets/stderr_tail.js";
import { createVerdict } from "../../widgets/verdict.js";
import { MOST_ROWS, createWorstTable } from "../../widgets/tables/worst_table.js";
import { createOverviewCards } from "./overview_cards.js";
import { createOverviewLanes } from "./overview_lanes.js";

const HINTS = [
  "Drag over a lane to see fewer steps, double click to see all.",
  "Click the timeline for that rank's layers around that step, Shift-click for the step itself.",
  "Click a cell of the layers for the exact step and rank, Shift-click or click a name for that tensor over time.",
];

/** @param {import("../../types.js").PageContext} ctx @param {() => void} refetch @returns {import("../../widgets/run_page.js").RunView} */
function build(ctx, refetch) {
  const death = createDeathNote();
  const stderr = createStderrTails(ctx.params.id);
  const note = createRunNote();
  const about = createRunAbout(ctx, refetch);
  const verdict = createVerdict();
  const cards = createOverviewCards(ctx);
  const trace = createTracePanel(ctx, refetch);
  const range = createRangeBar(ctx, el("ul", {}, ...HINTS.map((hint) => el("li", {}, hint))), undefined, trace.element);
  const legend = createStatisticLegend();
  const ranks = createRankMap(ctx, "");
  const lanes = createOverviewLanes(ctx, refetch, { layersQuery, onLayers: showLayers, onLane: cards.takeLane, onSeries: cards.takeSeries });
  const table = createWorstTable(ctx, lanes.pickCell, layersQuery);
  const compared = createComparedTable(ctx, refetch);
  const twin = el("details", { class: "twin", toggle: refetch }, el("summary", {}, "The layers as a table"), table.element);
  const strip = el("div", { class: "overview-strip", role: "group", "aria-label": "Axis of steps" }, range.element, lanes.strip);
  const element = el("div", {}, note.element, death.element, verdict.element, stderr.element, cards.element, ranks.element, strip, lanes.element, legend.element, twin, compared.element, about.element);

  /** This page has no choice that narrows them; exact steps are looked for once their table is open. */
  function layersQuery() {
    return { rank: "all", places: twin.open ? MOST_ROWS : null };
  }

  /** @param {import("../../charts/heatmap.js").HeatmapModel} model */
  function showLayers(model) {
    table.update(model);
    legend.update(model.statistic);
  }

  /** Then what may stand above the lanes comes before them, so that they need not move. */
  let isFirst = true;

  return {
    element,
    async update(run, signal) {
      note.update(run);
      about.update(run);
      death.update(run);
      verdict.update(run.verdict);
      cards.update(run);
      range.update(run);
      ranks.reserve(run);
      const view = { run, state: ctx.state, range: shownRange(ctx.state, run) };
      void stderr.update(tailRanks(run, ctx.state.rank), signal);
      const drawn = lanes.update(view, signal);
      await Promise.all([drawn, deferUntil(drawn).then(() => ranks.update(run, signal)), deferUntil(drawn).then(() => compared.update(run, signal)), isFirst ? trace.update(run, signal) : deferUntil(drawn).then(() => trace.update(run, signal))]);
      isFirst = false;
    },
    destroy() {
      lanes.destroy();
      ranks.destroy();
      legend.destroy();
    },
  };
}

export default runPage({
  id: "overview",
  title: "Overview",
  path: "/runs/{id}",
  key: "o",
  hasVerdict: true,
  help: "Is it healthy, and if not, since when and on which rank",
  build,
});

// Who ended without a goodbye: the sentence, and the Python stacks where faulthandler wrote them.

/** Stacks shown: ranks that died together died of the same more often than not. */
const MOST_STACKS = 4;
const MOST_LETTERS = 1200;

function createDeathNote() {
  const element = el("section", { class: "death-note", "data-testid": "death-note", "aria-live": "polite", hidden: true });
  let shown = "";
  return {
    element,
    /** @param {Pick<import("../../types.js").Run, "death" | "deaths">} run */
    update({ death, deaths }) {
      const now = JSON.stringify([death, deaths]);
      if (now === shown) return; // an opened stack stays open
      shown = now;
      element.hidden = !death;
      const withStacks = (deaths ?? []).filter(({ stack }) => stack).slice(0, MOST_STACKS);
      replace(element, death ? el("p", {}, "✕ ", clip(death, MOST_LETTERS)) : null, ...withStacks.map(stackOf));
    },
  };
}

/** Ranks whose last lines are of interest: those that died, those that failed, and the one that was chosen. Pure. @param {Pick<import("../../types.js").Run, "deaths" | "ranks">} run @param {number | "all" | null} chosen @returns {number[]} */
export function tailRanks({ deaths, ranks }, chosen) {
  const died = (deaths ?? []).map(({ rank }) => rank);
  const failed = ranks.filter(({ failure }) => failure).map(({ rank }) => rank);
  const mine = typeof chosen === "number" && ranks.some(({ rank }) => rank === chosen) ? [chosen] : [];
  return [...new Set([...mine, ...died.slice(0, MOST_STACKS), ...failed.slice(0, MOST_STACKS)])].slice(0, MOST_STACKS);
}

/** @param {import("../../types.js").Death} death */
function stackOf({ rank, stack }) {
  return el(
    "details",
    { class: "panel report stack" },
    el("summary", {}, `Python's stacks of rank ${rank}`),
    copyButton(() => stack, "Copy the stacks"),
    el("pre", { tabindex: 0, "aria-label": `Stacks of rank ${rank}` }, stack),
  );
}

// What people note of a run, to be changed: title, tags, note; put away; deleted for good.

/** @typedef {import("../../types.js").Run} Run */

/** @param {import("../../types.js").PageContext} ctx @param {() => void} changed */
function createRunAbout(ctx, changed) {
  const { id } = ctx.params;
  const title = el("input", { name: "title", maxlength: 200, autocomplete: "off" });
  const tags = el("input", { name: "tags", maxlength: 1300, autocomplete: "off", placeholder: "separated by commas" });
  const note = el("textarea", { name: "note", maxlength: 10000, rows: 4 });
  const status = el("span", { role: "status", class: "muted" });
  const archive = el("button", { type: "button", class: "quiet", click: () => set({ archived: !shown?.archived }) }, "Archive");
  const remove = el("button", { type: "button", class: "quiet", click: () => dialog.showModal() }, "Delete…");
  const buttons = el("p", { class: "inline-form" }, el("button", { type: "submit" }, "Save"), archive, remove, status);
  const field = (/** @type {string} */ name, /** @type {HTMLElement} */ control) => el("label", { class: "about-field" }, name, control);
  const form = el("form", { submit: saved, input: showUnsaved }, field("Title", title), field("Tags", tags), field("Note", note), buttons);
  const sure = el("p");
  const close = () => dialog.close();
  const dialog = el("dialog", { "aria-label": "Delete the run" }, sure, el("p", { class: "inline-form" }, el("button", { type: "button", class: "danger", click: gone }, "Delete permanently"), el("button", { type: "button", class: "quiet", click: close }, "Cancel")));
  const element = el("details", { class: "run-about", "data-testid": "run-about" }, el("summary", {}, "Title, tags and note; archive, delete"), form, dialog);
  const drafts = [title, tags, note].map(createDraft);
  /** @type {Run | null} */
  let shown = null;

  function showUnsaved() {
    status.textContent = drafts.some((draft) => draft.isChanged()) ? "Not saved yet." : "";
  }

  /** @param {Event} event */
  function saved(event) {
    event.preventDefault();
    const given = tags.value.split(",").map((tag) => tag.trim());
    const accepts = drafts.map((draft) => draft.sent());
    void set({ title: title.value.trim(), tags: given.filter(Boolean), note: note.value }, () => accepts.forEach((accept) => accept()));
  }

  /** @param {import("../../types.js").RunChange} change @param {() => void} [accepted] */
  async function set(change, accepted = () => {}) {
    status.textContent = "Saving.";
    try {
      await api.changeRun(id, change);
      accepted();
      showUnsaved();
      status.textContent ||= "Saved.";
      changed();
    } catch (error) {
      status.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  async function gone() {
    close();
    try {
      await api.deleteRun(id);
      ctx.navigate(runsPath({}));
      ctx.notify("The run was deleted.");
    } catch (error) {
      status.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  return {
    element,
    /** @param {Run} run */
    update(run) {
      shown = run;
      archive.textContent = run.archived ? "Unarchive" : "Archive";
      const steps = run.last_step === null ? "nothing recorded yet" : `${plural(run.last_step - (run.first_step ?? 0) + 1, "step")} of ${plural(run.ranks.length, "rank")}`;
      sure.textContent = `Delete the run ${clip(run.title || run.name, 120)} with all that was recorded of it (${steps})? This cannot be undone.${["live", "hung"].includes(run.state) ? " Its training continues, and creates the run again." : ""}`;
      title.placeholder = run.name;
      [run.title, run.tags.join(", "), run.note].forEach((value, i) => drafts[i].put(value));
    },
  };
}

/**
 * A field that is filled anew until somebody changes it: what is not saved stays, wherever the focus is.
 * @param {HTMLInputElement | HTMLTextAreaElement} input
 */
export function createDraft(input) {
  let last = input.value;
  return {
    isChanged: () => input.value !== last,
    /** @param {string} value */
    put(value) {
      if (input.value !== last || document.activeElement === input) return;
      input.value = value;
      last = input.value; // as the field holds it: of line breaks it has one kind
    },
    /** What is to be called once the server has what the field holds now. */
    sent() {
      const { value } = input;
      return () => void (last = value);
    },
  };
}

/** The note and the tags, where there are any. */
function createRunNote() {
  const element = el("section", { class: "panel run-note", "data-testid": "run-note", hidden: true });
  let now = "";
  return {
    element,
    /** @param {Run} run */
    update({ note, tags }) {
      if (now === JSON.stringify([note, tags])) return;
      now = JSON.stringify([note, tags]);
      element.hidden = !note && !tags.length;
      element.replaceChildren(...tags.map((tag) => link(runsPath({ q: tag, archived: "all" }), { class: "tag" }, tag)), ...(note ? [el("p", { class: "note-text" }, note)] : []));
    },
  };
}
