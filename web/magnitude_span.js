// Where magnitudes lie between a dtype's limits. Pure.

/** @typedef {{amin: number | null, amax: number | null, smallest_normal: number, max_finite: number}} Magnitudes */

/**
 * Fractions of the log range, 0 at the smallest normal and 1 at the largest finite; `from` is null when amin is unknown.
 * @param {Magnitudes} frame @returns {{from: number | null, to: number} | null}
 */
export function magnitudeSpan({ amin, amax, smallest_normal, max_finite }) {
  if (amax === null || !(amax > 0)) return null;
  const at = (/** @type {number} */ value) => clamp(Math.log2(value / smallest_normal) / Math.log2(max_finite / smallest_normal));
  return { from: amin !== null && amin > 0 ? at(amin) : null, to: at(amax) };
}

/** @param {number} fraction */
const clamp = (fraction) => Math.max(0, Math.min(1, fraction));
