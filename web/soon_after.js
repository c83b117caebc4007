// What the reader waits for goes first: a server that is asked for less at once answers it sooner.

/** Nothing waits for what takes longer. Milliseconds. */
const MOST_MS = 300;

/** Once some work is done, or takes long; work that fails soon fails this too. @param {Promise<unknown>} work @returns {Promise<void>} */
export function soonAfter(work) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, MOST_MS);
    work.then(() => resolve(), reject).finally(() => clearTimeout(timer));
  });
}
