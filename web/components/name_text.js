// A dotted name that breaks after its dots and underscores before it breaks anywhere else.

import { el } from "../dom.js";

/** @param {string} name @returns {import("../dom.js").Child[]} */
export function breakable(name) {
  return name.split(/(?<=[._])/).flatMap((piece, i) => (i > 0 ? [el("wbr"), piece] : [piece]));
}
