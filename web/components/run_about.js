// What people say of a run, to be changed: title, tags, note; put away; deleted for good.

import * as api from "../api.js";
import { el, link } from "../dom.js";
import { clip, plural } from "../format.js";
import { runsPath } from "../run_query.js";

/** @typedef {import("../types.js").Run} Run */

/** @param {import("../types.js").PageContext} ctx @param {() => void} changed */
export function createRunAbout(ctx, changed) {
  const { id } = ctx.params;
  const title = el("input", { name: "title", maxlength: 200, autocomplete: "off" });
  const tags = el("input", { name: "tags", maxlength: 1300, autocomplete: "off", placeholder: "separated by commas" });
  const note = el("textarea", { name: "note", maxlength: 10000, rows: 4 });
  const said = el("span", { role: "status", class: "muted" });
  const archive = el("button", { type: "button", class: "quiet", click: () => set({ archived: !shown?.archived }) }, "Archive");
  const remove = el("button", { type: "button", class: "quiet", click: () => dialog.showModal() }, "Delete…");
  const buttons = el("p", { class: "inline-form" }, el("button", { type: "submit" }, "Save"), archive, remove, said);
  const field = (/** @type {string} */ name, /** @type {HTMLElement} */ control) => el("label", { class: "about-field" }, name, control);
  const form = el("form", { submit: saved, input: tellUnsaved }, field("Title", title), field("Tags", tags), field("Note", note), buttons);
  const sure = el("p");
  const close = () => dialog.close();
  const dialog = el("dialog", { "aria-label": "Delete the run" }, sure, el("p", { class: "inline-form" }, el("button", { type: "button", class: "danger", click: gone }, "Delete it for good"), el("button", { type: "button", class: "quiet", click: close }, "Keep it")));
  const element = el("details", { class: "run-about", "data-testid": "run-about" }, el("summary", {}, "Title, tags and note; archive, delete"), form, dialog);
  const drafts = [title, tags, note].map(createDraft);
  /** @type {Run | null} */
  let shown = null;

  function tellUnsaved() {
    said.textContent = drafts.some((draft) => draft.isChanged()) ? "Not saved yet." : "";
  }

  /** @param {Event} event */
  function saved(event) {
    event.preventDefault();
    const given = tags.value.split(",").map((tag) => tag.trim());
    const accepts = drafts.map((draft) => draft.sent());
    void set({ title: title.value.trim(), tags: given.filter(Boolean), note: note.value }, () => accepts.forEach((accept) => accept()));
  }

  /** @param {import("../types.js").RunChange} change @param {() => void} [accepted] */
  async function set(change, accepted = () => {}) {
    said.textContent = "Saving.";
    try {
      await api.changeRun(id, change);
      accepted();
      tellUnsaved();
      said.textContent ||= "Saved.";
      changed();
    } catch (error) {
      said.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  async function gone() {
    close();
    try {
      await api.deleteRun(id);
      ctx.navigate(runsPath({}));
      ctx.say("The run was deleted.");
    } catch (error) {
      said.textContent = error instanceof Error ? error.message : String(error);
    }
  }

  return {
    element,
    /** @param {Run} run */
    update(run) {
      shown = run;
      archive.textContent = run.archived ? "Take out of the archive" : "Archive";
      const steps = run.last_step === null ? "nothing recorded yet" : `${plural(run.last_step - (run.first_step ?? 0) + 1, "step")} of ${plural(run.ranks.length, "rank")}`;
      sure.textContent = `Delete the run ${clip(run.title || run.name, 120)} with all that was recorded of it (${steps})? This cannot be taken back.${run.state === "live" ? " Its training goes on, and begins the run anew." : ""}`;
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
export function createRunNote() {
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
