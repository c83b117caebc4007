// The colours of magnitudes and shares: from pale to deep, told apart by lightness alone. Read from layers.css.

import { onTheme } from "./theme.js";

const STOPS = [0, 1, 2, 3, 4, 5, 6];
/** @type {string[] | null} */
let cached = null;
onTheme(() => (cached = null));

/** Low first. @returns {string[]} */
export function sequentialColours() {
  cached ??= readColours();
  return cached;
}

/** Resolved through an element, as theme.js does. */
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
