// What stands where no run or no step is yet: the code to paste, and what is being waited for.

import { runPath } from "../../api/url_state.js";
import { el, link } from "../../format/dom.js";
import { pasteBlock } from "../controls/copy_button.js";

const TWO_LINES = "import rangewatch\nrangewatch.attach(model, optimizer, scaler=scaler)";
/** Where agents send by default. */
const DEFAULT_ADDRESS = "http://127.0.0.1:8642";

/** @param {string} address of the server as agents reach it */
export function noRuns(address) {
  const elsewhere = address !== DEFAULT_ADDRESS;
  return el(
    "section",
    { class: "panel state-panel", "data-testid": "empty-state" },
    el("h1", {}, "No runs yet"),
    el("p", {}, "The server is up and listening. Add two lines to a training script, after the model and optimizer are made:"),
    pasteBlock(TWO_LINES, "Lines to add to the training script"),
    elsewhere && el("p", {}, "This server is not at the default address, so tell the script where it is:"),
    elsewhere && pasteBlock(`export RANGEWATCH_URL=${address}`, "Line to set in the shell"),
    el("p", { class: "muted" }, "The run appears here with its first step; nothing needs reloading. No training at hand? ", el("code", {}, "rangewatch demo"), " trains a small model that overflows."),
  );
}

/** @param {import("../../types.js").Run} run */
export function waitingRun(run) {
  return el(
    "section",
    { class: "panel state-panel", "data-testid": "empty-state" },
    el("h2", {}, "No step has arrived yet"),
    el("p", {}, `${run.ranks.length} of ${run.world_size} ranks have attached. The figures appear when the first optimizer step ends; a first step with compilation can take minutes.`),
    el("p", {}, "What is known before that: ", link(runPath(run.id, "environment"), {}, "environment and links"), ", ", link(runPath(run.id, "gpus"), {}, "GPUs and hosts"), "."),
    el("p", { class: "muted" }, "If training is past its first step: a loop with no optimizer must call step() on what attach returned."),
  );
}
