// Findings of the doctor: what, why it matters, what to type; on which ranks.

import { el, replace } from "../dom.js";
import { clip } from "../format.js";
import { whose } from "../environment_words.js";
import { copyButton } from "./copy_button.js";

/** @typedef {import("../environment_words.js").RanksFinding} RanksFinding */

const MOST = 100;
/** @type {Record<string, string>} */
const SHAPES = { error: "■ error", warning: "▲ warning", info: "○ note" };

/** @param {string} title @param {string} name */
export function createFindingList(title, name) {
  const list = el("ul", { class: "finding-list" });
  const element = el("section", { class: "panel findings", "data-testid": name, hidden: true }, el("h2", {}, title), list);
  let shown = "";
  return {
    element,
    /** @param {readonly RanksFinding[]} findings @param {number} ranks how many told of theirs */
    update(findings, ranks) {
      const now = JSON.stringify([findings, ranks]);
      if (now === shown) return;
      shown = now;
      element.hidden = findings.length === 0;
      replace(list, ...findings.slice(0, MOST).map((finding) => item(finding, ranks)));
    },
  };
}

/** @param {RanksFinding} finding @param {number} ranks */
function item(finding, ranks) {
  const { severity, what, why, do: todo, where, ranks: mine } = finding;
  return el(
    "li",
    { "data-severity": severity },
    el("p", { class: "finding-what" }, el("strong", { class: "finding-severity" }, SHAPES[severity] ?? severity), " ", clip(what, 500)),
    el("p", { class: "muted" }, [clip(whose(mine, ranks), 120), clip(where, 120)].filter(Boolean).join("; ")),
    why && el("p", {}, clip(why, 800)),
    todo && el("div", { class: "paste" }, el("pre", { tabindex: 0, "aria-label": "What to type" }, todo), copyButton(() => todo)),
  );
}
