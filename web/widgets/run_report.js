// A run as one file: a button, and a dialog with the download, and with the command that writes the same file.

import * as api from "../api/client.js";
import { fileName, saveFile } from "../charts/saving/files.js";
import { el, replace } from "../format/dom.js";
import { bytes } from "../format/units.js";
import { pasteBlock } from "./controls/copy_button.js";

const TITLE = "Report as one file";
const DOWNLOAD = "Download";
const WHAT = "An HTML file with this run's verdict, findings, figures and details as they are now. It opens with no server and loads nothing, so that it may be sent to anybody.";
const HOW = "Or type this where Rangewatch is installed, which writes the same file:";

export function createRunReport() {
  const command = el("div");
  const needs = el("p", { class: "muted" }, "The command needs plotly (", el("code", {}, "pip install plotly"), "), and the token in ", el("code", {}, "RANGEWATCH_TOKEN"), " if this server asks for one.");
  const download = el("button", { type: "button", click: () => void save() }, DOWNLOAD);
  const status = el("span", { role: "status", class: "muted" });
  const close = el("button", { type: "button", class: "quiet", click: () => dialog.close() }, "Close");
  const head = el("header", {}, el("h2", { id: "report-title" }, TITLE), close);
  const dialog = el("dialog", { class: "report-dialog", "aria-labelledby": "report-title", "data-testid": "run-report", click: beside }, head, el("p", {}, WHAT), el("p", { class: "inline-form" }, download, status), el("p", {}, HOW), command, needs);
  const button = el("button", { type: "button", class: "quiet", "aria-haspopup": "dialog", "data-command": "report", hidden: true, click: open }, `${TITLE}…`);
  /** @type {import("../types.js").Run | null} */
  let run = null;

  /** Made anew: what is being copied must not change. */
  function open() {
    if (run) replace(command, pasteBlock(reportCommand(run, location.origin), "Command that writes the report"));
    dialog.showModal();
  }

  /** It goes on when the dialog is closed. Under way a second press does nothing, and the button keeps the focus. */
  async function save() {
    if (!run || download.getAttribute("aria-disabled") === "true") return;
    const { id } = run;
    download.setAttribute("aria-disabled", "true");
    download.textContent = "Making it…";
    status.textContent = "The server reads the run.";
    try {
      const { content, name } = await api.report(String(id), (read) => (status.textContent = `${bytes(read)} so far`));
      saveFile(content, name ?? `${fileName("rangewatch", "run", id)}.html`);
      status.textContent = `Saved, ${bytes(content.size)}.`;
    } catch (error) {
      status.textContent = `Nothing was saved: ${error instanceof Error ? error.message : String(error)}`;
    } finally {
      download.removeAttribute("aria-disabled");
      download.textContent = DOWNLOAD;
    }
  }

  /** A click on what lies around it. @param {MouseEvent} event */
  function beside(event) {
    if (event.target === dialog) dialog.close();
  }

  return {
    button,
    dialog,
    /** Only of a run that has something to report. @param {import("../types.js").Run} next */
    update(next) {
      run = next;
      button.hidden = next.last_step === null;
    },
  };
}

// The command that writes a run into one file, for a POSIX shell.

/** Longer names are not read, let alone typed: the run's number is another name of it. */
const MOST_NAME = 200;
/** What a terminal may obey as it is pasted (quotes do not help), what is not seen or turns the line around, what begins an option, and what may be another run's number. */
const HAS_NO_PLACE = /[\p{C}\p{Zl}\p{Zp}]|^-|^\d*$/u;
/** A word that a shell takes as it is. */
const PLAIN = /^[\w@%+=:,./-]+$/;

/** One word of a POSIX shell, whatever is in it. @param {string} text */
export const quoted = (text) => (PLAIN.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

/** What the run is called in a shell: by its name where that can be read and pasted. @param {{id: number, name: string}} run */
const called = ({ id, name }) => (name.length > MOST_NAME || HAS_NO_PLACE.test(name) ? String(id) : name);

/** @param {{id: number, name: string}} run @param {string} address of the server as the reader reaches it */
export function reportCommand(run, address) {
  const command = ["rangewatch", "export", called(run), `${fileName("run", run.id, "report")}.html`, "--url", address];
  return command.map(quoted).join(" ");
}
