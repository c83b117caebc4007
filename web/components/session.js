// Who is logged in, and the way out; nothing where nobody is.

import { access, logout } from "../api.js";
import { el, replace } from "../dom.js";

/** A place that shows it, and what to call when it may have changed. @param {() => void} changed after a logout */
export function sessionPanel(changed) {
  const panel = el("div", { class: "session", "data-testid": "session" });
  const said = el("span", { role: "status" });

  async function leave() {
    said.textContent = "";
    try {
      await logout();
    } catch (error) {
      said.textContent = `Not logged out: ${error instanceof Error ? error.message : String(error)}`;
      return; // the session may still be there, and the page with it
    }
    await look();
    changed();
  }

  async function look() {
    const found = await access().catch(() => null);
    if (!found?.session) replace(panel);
    else replace(panel, el("button", { type: "button", class: "quiet", click: leave, title: `Logged in as ${found.name}` }, "Log out"), said);
  }

  return { panel, look };
}
