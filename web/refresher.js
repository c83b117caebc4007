// Runs one load at a time: requests that come meanwhile become one more, failures are tried again.

/** Least time from a load to the next, so that a busy run does not keep a page fetching. Milliseconds. */
const GAP_MS = 400;
/** A page also looks by itself now and then: silence turns "live" into "stale" with no event. Milliseconds. */
const IDLE_MS = 10_000;
/** Milliseconds. */
const RETRY_MS = 3000;

/**
 * @param {(signal: AbortSignal) => Promise<void>} load
 * @param {(error: unknown) => boolean} failed says whether to try again
 */
export function createRefresher(load, failed) {
  /** @type {AbortController | null} */
  let running = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let wanted = false;
  let stopped = false;
  let lastTookMs = 0;
  let endedMs = -Infinity;

  /** @param {number} ms */
  function after(ms) {
    clearTimeout(timer);
    timer = setTimeout(() => (document.hidden ? after(IDLE_MS) : start()), ms);
  }

  async function start() {
    clearTimeout(timer);
    const mine = new AbortController();
    running = mine;
    wanted = false;
    const began = performance.now();
    let wait = IDLE_MS;
    const isOver = () => running !== mine || stopped;
    try {
      await load(mine.signal);
    } catch (error) {
      if (isOver()) return;
      wait = failed(error) ? RETRY_MS : Infinity;
      mine.abort(); // what else it had begun, and would draw over the next
    }
    if (isOver()) return;
    running = null;
    endedMs = performance.now();
    lastTookMs = endedMs - began;
    if (wanted) after(pause());
    else if (wait !== Infinity) after(wait);
  }

  /** What is left of it: at most half of the time is spent on fetching and drawing, and the first change is shown at once. */
  const pause = () => Math.max(0, endedMs + Math.max(GAP_MS, lastTookMs) - performance.now());

  return {
    /** Something changed: load soon. */
    soon() {
      if (stopped || document.hidden || wanted) return;
      wanted = true;
      if (!running) after(pause());
    },
    /** The reader asked: drop what is under way and load at once. Who asks after the page was left, as a late answer does, is not heard. */
    now() {
      if (stopped) return;
      running?.abort();
      start();
    },
    stop() {
      stopped = true;
      clearTimeout(timer);
      running?.abort();
    },
  };
}
