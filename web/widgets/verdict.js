// The verdict at the top of a page: one sentence with the level of danger, what it led to, what to try, and links to the
// evidence; of the other findings a chip each.

import { severityGlyph } from "../charts/alerts/alert_marks.js";
import { DRAWN, el, link, replace } from "../format/dom.js";
import { clip, count } from "../format/numbers.js";
import { copyButton } from "./controls/copy_button.js";

/** @type {Record<string, string>} */
const SHAPES = { ok: "●", warning: "▲", critical: "■", empty: "○" };
const MOST_LETTERS = 400;

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
      replace(element, sentence(verdict), ...chain(verdict), ...fix(verdict), ...links(verdict), ...others(verdict));
      element.dispatchEvent(new Event(DRAWN, { bubbles: true }));
    },
  };
}

/** @param {import("../types.js").Verdict} verdict */
function sentence({ level, parts }) {
  const [first, ...rest] = parts;
  const lead = first ? leadOf(first) : [];
  return el("p", {}, el("span", { class: "verdict-shape", "aria-hidden": "true" }, SHAPES[level] ?? "●"), " ", ...lead, ...rest.map(part));
}

/** The text up to the first full stop, in bold where the server marked none. @param {[string, string]} first */
function leadOf(first) {
  const [, opening, rest] = /^((?:[^.;:,(]|[.,](?=\d))*[.;:,]?)(.*)$/s.exec(first[1]) ?? [];
  return first[0] === "text" && opening ? [el("strong", {}, opening), rest] : [part(first)];
}

/** @param {[string, string]} piece */
const part = ([kind, text]) => (kind === "code" ? el(kind, {}, clip(text)) : kind === "strong" ? el(kind, {}, clip(text, MOST_LETTERS)) : text);

/** @param {import("../types.js").Verdict} verdict */
const chain = ({ chain: lines = [] }) => (lines.length ? [el("ul", { class: "verdict-chain", "aria-label": "How it goes on" }, ...lines.map((line) => el("li", {}, clip(line, MOST_LETTERS))))] : []);

/** @param {import("../types.js").Verdict} verdict */
function fix({ fix: first }) {
  if (!first) return [];
  const copy = first.code ? [" ", copyButton(() => first.code, "Copy the code")] : [];
  return [el("p", { class: "verdict-fix" }, el("span", { class: "verdict-try" }, "Try: "), clip(first.text, MOST_LETTERS), ...copy)];
}

/** @param {import("../types.js").Verdict} verdict */
function links({ links: ways }) {
  const items = ways.flatMap(({ label, path }, i) => [i > 0 && " ", link(path, {}, label)]);
  return items.length ? [el("p", { class: "verdict-links" }, ...items)] : [];
}

/** @param {import("../types.js").Verdict} verdict */
function others({ others: open = [], more = 0 }) {
  const chips = open.map(({ severity, label, path }) => link(path, { class: "verdict-chip", "data-severity": severity }, severityGlyph(severity, "open"), " ", clip(label)));
  const rest = more > 0 ? [el("span", { class: "muted" }, `and ${count(more)} more`)] : [];
  return chips.length ? [el("p", { class: "verdict-others" }, el("span", { class: "muted" }, "Also open: "), ...chips, ...rest)] : [];
}
