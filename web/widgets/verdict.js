// The verdict at the top of a page: one sentence with the level of danger, and links to the evidence.

import { el, link, replace } from "../format/dom.js";
import { clip } from "../format/numbers.js";

/** @type {Record<string, string>} */
const SHAPES = { ok: "●", warning: "▲", overflow: "■", empty: "○" };

export function createVerdict() {
  const element = el("section", { class: "panel verdict", "data-testid": "verdict", "aria-live": "polite" });
  let shown = "";
  return {
    element,
    /** @param {import("../types.js").Verdict} verdict */
    update(verdict) {
      if (shown === JSON.stringify(verdict)) return; // a screen reader hears it once
      shown = JSON.stringify(verdict);
      element.dataset.level = verdict.level;
      replace(element, sentence(verdict), ...links(verdict));
    },
  };
}

/** @param {import("../types.js").Verdict} verdict */
function sentence({ level, parts }) {
  const [first, ...rest] = parts;
  const lead = first ? leadOf(first) : [];
  return el("p", {}, el("span", { class: "verdict-shape", "aria-hidden": "true" }, SHAPES[level] ?? "●"), " ", ...lead, ...rest.map(part));
}

/** The opening words, up to the first stop, in bold where the server marked none. @param {[string, string]} first */
function leadOf(first) {
  const [, opening, rest] = /^((?:[^.;:,(]|[.,](?=\d))*[.;:,]?)(.*)$/s.exec(first[1]) ?? [];
  return first[0] === "text" && opening ? [el("strong", {}, opening), rest] : [part(first)];
}

/** @param {[string, string]} piece */
const part = ([kind, text]) => (kind === "code" || kind === "strong" ? el(kind, {}, clip(text)) : text);

/** @param {import("../types.js").Verdict} verdict */
function links(verdict) {
  const items = verdict.links.flatMap(({ label, path }, i) => [i > 0 && " · ", link(path, {}, label)]);
  return items.length ? [el("p", { class: "verdict-links" }, ...items)] : [];
}
