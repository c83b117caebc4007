// Says that live updates stopped, and when they are back.

import { el } from "../dom.js";

/** @param {HTMLElement} parent @returns {(status: import("../live.js").Status) => void} */
export function connectionNote(parent) {
  const note = el(
    "p",
    { class: "connection", role: "status", "data-testid": "connection-lost", hidden: true },
    "Connection to the server lost. What you see is what was last received; trying again.",
  );
  parent.append(note);
  return (status) => {
    note.hidden = status !== "lost";
  };
}
