// How to have a run as one file: a button, and a dialog with the command for this run.

import { el, replace } from "../dom.js";
import { reportCommand } from "../report_command.js";
import { pasteBlock } from "./copy_button.js";

const TITLE = "Report as one file";
const WHAT = "An HTML file with this run's verdict, findings, figures and facts as they are now. It opens with no server and loads nothing, so that it may be sent to anybody.";
const HOW = "Type this where Rangewatch is installed:";

export function createRunReport() {
  const command = el("div");
  const needs = el("p", { class: "muted" }, "It needs plotly (", el("code", {}, "pip install plotly"), "), and the token in ", el("code", {}, "RANGEWATCH_TOKEN"), " if this server asks for one.");
  const close = el("button", { type: "button", class: "quiet", click: () => dialog.close() }, "Close");
  const head = el("header", {}, el("h2", { id: "report-title" }, TITLE), close);
  const dialog = el("dialog", { class: "report-dialog", "aria-labelledby": "report-title", "data-testid": "run-report", click: beside }, head, el("p", {}, WHAT), el("p", {}, HOW), command, needs);
  const button = el("button", { type: "button", class: "quiet", "aria-haspopup": "dialog", hidden: true, click: open }, `${TITLE}…`);
  /** @type {import("../types.js").Run | null} */
  let run = null;

  /** Made anew: what is being copied must not change. */
  function open() {
    if (run) replace(command, pasteBlock(reportCommand(run, location.origin), "Command that writes the report"));
    dialog.showModal();
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
