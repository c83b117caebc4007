// The only EventSource: it reports that a run changed, and a refresher then loads again, one load at a time.
// One connection a page, closed while the tab is hidden: browsers allow few to one server.

import { access } from "./client.js";
import { firstSeen } from "./fetch.js";

/** stranger: the server is there, and asks for a token, as the page then shows. @typedef {"connecting" | "open" | "lost" | "stranger"} Status */

/** Wait before a closed connection is opened again. Milliseconds. */
const RETRY_MS = 3000;

/** @param {string} url */
export function createLive(url) {
  /** @type {Set<{run: string | null, listener: () => void}>} */
  const subscribers = new Set();
  /** @type {EventSource | null} */
  let source = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let retry;
  /** @type {Status} */
  let status = "connecting";
  /** @type {(status: Status) => void} */
  let onStatus = () => {};
  /** What the page had seen before it listened: the server answers whether it missed a change. @type {string | null} */
  let seen = null;

  /** @param {Status} next */
  function become(next) {
    if (status === next) return;
    status = next;
    onStatus(next);
  }

  /** @param {string | null} run null notifies every page: something may have been missed */
  function notify(run) {
    for (const { run: wanted, listener } of subscribers) {
      if (run === null || wanted === null || wanted === run) listener();
    }
  }

  function open() {
    close();
    source = new EventSource(seen === null ? url : `${url}?seen=${encodeURIComponent(seen)}`);
    source.addEventListener("open", opened);
    source.addEventListener("error", lost);
    source.addEventListener("missed", () => notify(null));
    source.addEventListener("changed", (event) => notify(runOf(event.data)));
  }

  function opened() {
    become("open");
    if (seen === null) notify(null);
  }

  async function lost() {
    const mine = source;
    const isRefused = mine?.readyState === EventSource.CLOSED;
    if (isRefused) retry = setTimeout(open, RETRY_MS);
    const next = isRefused && (await isStranger()) ? "stranger" : "lost";
    if (source === mine) become(next);
  }

  function close() {
    clearTimeout(retry);
    source?.close();
    source = null;
  }

  function followVisibility() {
    if (document.hidden) {
      close();
      status = "connecting";
    } else {
      open();
    }
  }

  return {
    /** @param {(status: Status) => void} listener */
    async start(listener) {
      onStatus = listener;
      seen = await firstSeen;
      document.addEventListener("visibilitychange", followVisibility);
      if (!document.hidden) open();
    },
    /** @param {string | null} run null: any run @param {() => void} listener @returns {() => void} */
    subscribe(run, listener) {
      const entry = { run, listener };
      subscribers.add(entry);
      return () => subscribers.delete(entry);
    },
  };
}

/** An EventSource has no reason why it was refused. @returns {Promise<boolean>} */
const isStranger = () => access().then(({ roles }) => roles.length === 0, () => false);

/** @param {string} data @returns {string | null} */
function runOf(data) {
  try {
    return String(JSON.parse(data).run);
  } catch {
    return null;
  }
}

// Runs one load at a time: requests that come meanwhile become one more, failures are tried again.

/** Least time from a load to the next, so that a busy run does not keep a page fetching. Milliseconds. */
const GAP_MS = 400;
/** A page also checks by itself now and then: silence turns "live" into "stale" with no event. Milliseconds. */
const IDLE_MS = 10_000;
/** Milliseconds. */
const AGAIN_MS = 3000;

/**
 * @param {(signal: AbortSignal) => Promise<void>} load
 * @param {(error: unknown) => boolean} failed returns whether to try again
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
      wait = failed(error) ? AGAIN_MS : Infinity;
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

// The server's clock, carried on by ours between two answers: the two machines may disagree. Pure but for the clock.

/** @param {number | undefined} nowNs as the server sent it just now @returns {() => number} nanoseconds */
export function clockFrom(nowNs = Date.now() * 1e6) {
  const receivedMs = performance.now();
  return () => nowNs + (performance.now() - receivedMs) * 1e6;
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
