// Light or dark theme, and its palette as the browser resolves it: the colours of style.css, and the scales of colours.js.

import { SCALES } from "./colours.js";

const KEY = "rangewatch.theme";
const CHOICES = /** @type {const} */ (["auto", "light", "dark"]);
/** @typedef {(typeof CHOICES)[number]} Choice */

/**
 * @typedef {object} Palette
 * @property {string} panel
 * @property {string} ink
 * @property {string} muted
 * @property {string} line
 * @property {string} hatch
 * @property {string} accent
 * @property {string} second
 * @property {string} bad
 * @property {string} warning
 * @property {string} nonfinite
 * @property {string} nonfiniteInk
 * @property {string} calm
 * @property {Record<keyof typeof SCALES, import("./colours.js").ColourScale>} scales
 * @property {string[]} phases
 */

/** @type {Set<() => void>} */
const listeners = new Set();
/** @type {Palette | null} */
let cached = null;

/** @returns {Choice} */
export function themeChoice() {
  try {
    const stored = localStorage.getItem(KEY);
    return CHOICES.find((choice) => choice === stored) ?? "auto";
  } catch {
    return "auto"; // storage may be forbidden; the theme then lasts as long as the page
  }
}

/** @param {Choice} choice */
export function chooseTheme(choice) {
  try {
    localStorage.setItem(KEY, choice);
  } catch {
    // as above
  }
  apply(choice);
}

/** auto, light, dark, auto, ... @param {Choice} choice @returns {Choice} */
export const nextChoice = (choice) => CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];

/** @param {Choice} choice */
function apply(choice) {
  document.documentElement.dataset.theme = choice;
  announce();
}

function announce() {
  cached = null;
  for (const listener of listeners) listener();
}

/** Called when colours changed. @param {() => void} listener @returns {() => void} stops it */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function startTheme() {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announce);
  apply(themeChoice());
}

/** @returns {Palette} */
export function palette() {
  cached ??= readPalette();
  return cached;
}

/** Resolved through an element, because light-dark() stays unresolved in a custom property's own text. @returns {Palette} */
function readPalette() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const resolved = (/** @type {string} */ colour) => {
    probe.style.color = colour;
    return getComputedStyle(probe).color;
  };
  const names = /** @type {const} */ (["panel", "ink", "muted", "line", "hatch", "accent", "second", "bad", "warning", "calm", "nonfinite"]);
  const named = Object.fromEntries(names.map((name) => [name, resolved(`var(--${name})`)]));
  const scales = Object.fromEntries(Object.entries(SCALES).map(([name, scale]) => [name, scale.map(([at, colour]) => [at, resolved(colour)])]));
  const phases = [0, 1, 2, 3, 4, 5].map((i) => resolved(`var(--p${i})`));
  const nonfiniteInk = resolved("var(--nonfinite-ink)");
  probe.remove();
  return /** @type {Palette} */ (/** @type {unknown} */ ({ ...named, scales, phases, nonfiniteInk }));
}
