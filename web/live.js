// The only EventSource. It brings "this run changed", never data; listeners then fetch what they show.
// One connection a page, closed while the tab is hidden: browsers allow few to one server.

import { access, firstSeen } from "./api.js";

/** stranger: the server is there, and asks for a token, as the page then says. @typedef {"connecting" | "open" | "lost" | "stranger"} Status */

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
  /** What the page had seen before it listened: the server says whether it missed a change. @type {string | null} */
  let seen = null;

  /** @param {Status} next */
  function become(next) {
    if (status === next) return;
    status = next;
    onStatus(next);
  }

  /** @param {string | null} run null tells every page: something may have been missed */
  function tell(run) {
    for (const { run: wanted, listener } of subscribers) {
      if (run === null || wanted === null || wanted === run) listener();
    }
  }

  function open() {
    close();
    source = new EventSource(seen === null ? url : `${url}?seen=${encodeURIComponent(seen)}`);
    source.addEventListener("open", opened);
    source.addEventListener("error", lost);
    source.addEventListener("missed", () => tell(null));
    source.addEventListener("changed", (event) => tell(runOf(event.data)));
  }

  function opened() {
    become("open");
    if (seen === null) tell(null);
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

/** An EventSource does not say why it was refused. @returns {Promise<boolean>} */
const isStranger = () => access().then(({ roles }) => roles.length === 0, () => false);

/** @param {string} data @returns {string | null} */
function runOf(data) {
  try {
    return String(JSON.parse(data).run);
  } catch {
    return null;
  }
}
