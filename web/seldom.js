// What costs much to ask for is asked for again only after a while, or when something else is wanted.

/** At most this share of the time is spent on asking. */
const SHARE = 0.2;

/**
 * @template {any[]} A, T
 * @param {(...asked: A) => Promise<T>} ask @param {(...asked: A) => string} keyOf another key: another answer
 * @param {number} [leastMs] an answer is kept at least so long
 * @returns {(...asked: A) => Promise<T>}
 */
export function seldom(ask, keyOf, leastMs = 0) {
  /** @type {{key: string, untilMs: number, answer: T} | null} */
  let kept = null;
  return async (...asked) => {
    const key = keyOf(...asked);
    const began = performance.now();
    if (kept?.key === key && began < kept.untilMs) return kept.answer;
    const answer = await ask(...asked);
    const ended = performance.now();
    kept = { key, untilMs: ended + Math.max(leastMs, (ended - began) * (1 / SHARE - 1)), answer };
    return answer;
  };
}
