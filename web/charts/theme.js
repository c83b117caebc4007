// Light or dark theme, the palette read from the style sheets, and the colour scales.

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
 * @property {string[]} headroom
 * @property {string[]} phases
 */

/** @type {Set<() => void>} */
const listeners = new Set();
/** @type {Palette | null} */
let cached = null;

/** @returns {Choice} */
export function themeChoice() {
  try {
    const kept = localStorage.getItem(KEY);
    return CHOICES.find((choice) => choice === kept) ?? "auto";
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
  const read = (/** @type {string} */ name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const names = /** @type {const} */ (["panel", "ink", "muted", "line", "hatch", "accent", "second", "bad", "warning", "nonfinite"]);
  const named = Object.fromEntries(names.map((name) => [name, read(name)]));
  const headroom = [0, 1, 2, 3, 4, 5, 6].map((i) => read(`h${i}`));
  const phases = [0, 1, 2, 3, 4, 5].map((i) => read(`p${i}`));
  const nonfiniteInk = read("nonfinite-ink");
  probe.remove();
  return /** @type {Palette} */ ({ ...named, headroom, phases, nonfiniteInk });
}

// The colours of magnitudes and shares: from pale to deep, told apart by lightness alone. Read from layers.css.

const STOPS = [0, 1, 2, 3, 4, 5, 6];
/** @type {string[] | null} */
let cachedRamp = null;
onTheme(() => (cachedRamp = null));

/** Low first. @returns {string[]} */
export function sequentialColours() {
  cachedRamp ??= readColours();
  return cachedRamp;
}

/** Resolved through an element, as `palette` does. */
function readColours() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const found = STOPS.map((i) => {
    probe.style.color = `var(--s${i})`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return found;
}

// One sequential scale for costs and slowdowns: cool and pale while it does not matter, hot when it does.

/**
 * @typedef {object} Scale
 * @property {number} low at and below it all is calm
 * @property {number} high at and above it is as hot as it gets
 * @property {readonly number[]} ticks
 * @property {(value: number) => string} text
 */

/** Where a value lies on a logarithmic scale, 0 calm to 1 hot. @param {number} value @param {Pick<Scale, "low" | "high">} scale */
export function share(value, { low, high }) {
  if (!(value > low)) return 0;
  return Math.min(1, Math.log(value / low) / Math.log(high / low));
}

/** @param {string} colour "rgb(1, 2, 3)", as the browser resolves it @returns {number[]} */
export const channels = (colour) => (colour.match(/[\d.]+/g) ?? ["0", "0", "0"]).slice(0, 3).map(Number);

/**
 * A colour between those of the ramp.
 * @param {readonly string[]} ramp hot first, as the palette's headroom colours are @param {number} at 0 calm to 1 hot
 * @returns {[number, number, number]}
 */
export function colourAt(ramp, at) {
  const place = (1 - at) * (ramp.length - 1);
  const below = Math.min(ramp.length - 2, Math.floor(place));
  const [from, to] = [channels(ramp[below]), channels(ramp[below + 1])];
  const mixed = from.map((channel, i) => Math.round(channel + (to[i] - channel) * (place - below)));
  return [mixed[0], mixed[1], mixed[2]];
}
