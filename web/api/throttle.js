// Throttles requests that cost much.

/** At most this share of the time is spent on asking. */
const SHARE = 0.2;

/**
 * @template {any[]} A, T
 * @param {(...asked: A) => Promise<T>} ask @param {(...asked: A) => string} keyOf another key: another answer
 * @param {number} [leastMs] an answer is cached at least so long
 * @returns {(...asked: A) => Promise<T>}
 */
export function throttle(ask, keyOf, leastMs = 0) {
  /** @type {{key: string, untilMs: number, answer: T} | null} */
  let cached = null;
  return async (...asked) => {
    const key = keyOf(...asked);
    const began = performance.now();
    if (cached?.key === key && began < cached.untilMs) return cached.answer;
    const answer = await ask(...asked);
    const ended = performance.now();
    cached = { key, untilMs: ended + Math.max(leastMs, (ended - began) * (1 / SHARE - 1)), answer };
    return answer;
  };
}
