// The panels for failed requests, each with what to do; one of them is the login form.

import { login } from "../../api/client.js";
import { ApiError } from "../../api/fetch.js";
import { el, link, replace } from "../../format/dom.js";

/** @param {string} title @param {...import("../../format/dom.js").Child} body */
function errorPanel(title, ...body) {
  return el("section", { class: "panel state-panel", role: "alert", "data-testid": "error-state" }, el("h1", {}, title), ...body);
}

const toRuns = () => el("p", {}, link("/", {}, "All runs"));

/**
 * The panel for a failed load.
 * @param {unknown} error @param {import("../../types.js").PageContext} ctx
 */
export function errorState(error, ctx) {
  const failure = error instanceof ApiError ? error : new ApiError(-1, "page_fault", String(error));
  if (failure.status === 401) return loginForm(ctx.remount);
  if (failure.code === "unknown_rank") {
    return errorPanel("This rank is not in the run", el("p", {}, failure.message), toRuns());
  }
  if (isOfRun(failure)) {
    if (failure.status === 422) return errorPanel("There is no such run", el("p", {}, "A run is named by its number, as in /runs/12."), toRuns());
    return errorPanel("There is no such run", el("p", {}, `${failure.message}. It may have been deleted, or belong to another server.`), toRuns());
  }
  if (failure.status === 404 || failure.status === 422) return errorPanel("This address cannot be shown", el("p", {}, failure.message), toRuns());
  if (failure.status === 0) return unreachable(failure);
  return errorPanel("The page could not be loaded", el("p", {}, failure.message), el("p", {}, "Trying again every few seconds."), toRuns());
}

/** Whether it is the run that is not there, or its number that is none. Pure. @param {ApiError} failure */
export const isOfRun = ({ status, code, message }) => code === "unknown_run" || (status === 422 && message.startsWith("run_id: "));

/** @param {ApiError} failure */
function unreachable(failure) {
  return errorPanel(
    "The server does not answer",
    el("p", {}, failure.message),
    el("p", {}, "Start it with ", el("code", {}, "rangewatch serve"), ". This page tries again by itself. Training is not affected: the agents keep their records until the server is back."),
  );
}

/** Whether trying again may help. @param {unknown} error */
export function mayHeal(error) {
  return !(error instanceof ApiError) || error.status === 0 || error.status >= 500 || error.status === 429;
}

/** @param {HTMLElement} root @returns {() => void} */
export function notFound(root) {
  replace(root, errorPanel("There is no such page", el("p", {}, "Nothing lives at this address."), toRuns()));
  return () => {};
}

// Asks for a token; the answer is a session cookie, which no script can read.

/** @param {() => void} done */
function loginForm(done) {
  const field = el("input", { type: "password", name: "token", id: "token", autocomplete: "current-password", required: true });
  const problem = el("p", { class: "bad", role: "alert" });
  /** @param {SubmitEvent} event */
  async function submit(event) {
    event.preventDefault();
    try {
      await login(field.value);
      done();
    } catch (error) {
      problem.textContent = error instanceof Error ? error.message : String(error);
      field.select();
    }
  }
  return el(
    "section",
    { class: "panel state-panel", "data-testid": "error-state" },
    el("h1", {}, "This server asks for a token"),
    el(
      "p",
      {},
      "Whoever runs it makes one with ",
      el("code", {}, "rangewatch token create NAME --role view"),
      ", or has started it with one (",
      el("code", {}, "RANGEWATCH_TOKEN"),
      ").",
    ),
    el("form", { submit, class: "inline-form" }, el("label", { for: "token" }, "Token"), field, el("button", { type: "submit" }, "Log in")),
    problem,
  );
}
