// What the reader waits for goes first: a server that is asked for less at once answers it sooner.

/** Nothing waits for what takes longer. Milliseconds. */
const MOST_MS = 300;

/** Once some work has ended, well or not, or takes long. @param {Promise<unknown>} work @returns {Promise<void>} */
export function soonAfter(work) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, MOST_MS);
    const ended = () => {
      clearTimeout(timer);
      resolve();
    };
    work.then(ended, ended);
  });
}
