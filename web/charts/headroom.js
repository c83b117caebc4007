// The headroom scale, and the states of a cell: codes, texts and order of badness. Pure.

export const STATE = Object.freeze({ value: 0, saturated: 1, inf: 2, nan: 3, zero: 4, notObserved: 5, stale: 6 });

/** Words by code, and what a reader should know of each. */
export const STATE_WORDS = Object.freeze([
  { name: "value", word: "value", help: "finite, at least 1 bit of headroom" },
  { name: "saturated", word: "saturated", help: "under 1 bit of headroom" },
  { name: "inf", word: "Inf", help: "at least one Inf, no NaN" },
  { name: "nan", word: "NaN", help: "at least one NaN" },
  { name: "zero", word: "all zero", help: "every element was zero" },
  { name: "not_observed", word: "not observed", help: "the hooks did not fire, or nothing arrived" },
  { name: "stale", word: "stale", help: "this rank went silent while others went on" },
]);

/** Bits at the scale's colours. Fixed, never stretched to the data: two runs compare by eye. */
export const SCALE_BITS = Object.freeze([0, 1, 2, 4, 6.4, 9.6, 16]);
export const SCALE_TOP = 16;

/** Worst last; the order in which states are painted, so that the worst lies on top. */
export const PAINT_ORDER = Object.freeze([STATE.stale, STATE.notObserved, STATE.zero, STATE.saturated, STATE.inf, STATE.nan]);

/** @param {readonly string[]} colours @returns {[number, string][]} */
export function plotlyScale(colours) {
  return SCALE_BITS.map((at, i) => [at / SCALE_TOP, colours[i]]);
}

/** @param {number} state */
export const isNonfinite = (state) => state === STATE.inf || state === STATE.nan;

/** Greater is worse; NaN and Inf are alike, and anything observed is worse than anything not. @param {number} state @param {number} bits */
export function badness(state, bits) {
  if (isNonfinite(state)) return 101;
  if (state === STATE.value || state === STATE.saturated) return 100 - bits;
  return -state;
}

/** @param {string} name */
export function stateWord(name) {
  return STATE_WORDS.find((state) => state.name === name)?.word ?? name;
}

/** Which colour of the scale a number of bits is nearest to from below, 0 to 6. @param {number | null} bits */
export function heatOf(bits) {
  if (bits === null) return null;
  const above = SCALE_BITS.findIndex((at) => bits < at);
  return above < 0 ? SCALE_BITS.length - 1 : Math.max(0, above - 1);
}
