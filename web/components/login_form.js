// Asks for a token; the answer is a session cookie, which no script can read.

import { login } from "../api.js";
import { el } from "../dom.js";

/** @param {() => void} done */
export function loginForm(done) {
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
