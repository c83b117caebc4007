// Throttles requests that cost much, and defers those that can wait for another one.

/** At most this share of the time is spent on asking. */
const SHARE = 0.2;

/**
 * @template {any[]} A, T
 * @param {(...asked: A) => Promise<T>} ask @param {(...asked: A) => string} keyOf another key: another answer
 * @param {number} [leastMs] an answer is kept at least so long
 * @returns {(...asked: A) => Promise<T>}
 */
export function throttle(ask, keyOf, leastMs = 0) {
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

// What the reader waits for goes first: a server that is asked for less at once answers it sooner.

/** Nothing waits for what takes longer. Milliseconds. */
const MOST_MS = 300;

/** Once some work is done, or takes long; work that fails soon fails this too. @param {Promise<unknown>} work @returns {Promise<void>} */
export function deferUntil(work) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, MOST_MS);
    work.then(() => resolve(), reject).finally(() => clearTimeout(timer));
  });
}
