// The only fetch() of the pages. Every failure is an ApiError with a short code a page can explain.

// What the server had counted of changes when a page read its first answers: whether any came before it could listen.

/**
 * The oldest of some counts, "SERVER.NUMBER"; null where one is unknown, or of another server, which counts others.
 * @param {readonly (string | null)[]} counts
 */
export function oldest(counts) {
  const [first, ...more] = counts.map((count) => /^(\w+)\.(\d+)$/.exec(count ?? ""));
  if (!first || more.some((one) => one?.[1] !== first[1])) return null;
  return `${first[1]}.${Math.min(...[first, ...more].map((one) => Number(one?.[2])))}`;
}

/** Counts answers until none is awaited. Of those asked at once any may have been read first. */
export function createFirstSeen() {
  /** @type {(string | null)[]} */
  const counts = [];
  let awaited = 0;
  let isSettled = false;
  /** @type {(count: string | null) => void} */
  let settle;
  /** @type {Promise<string | null>} */
  const seen = new Promise((resolve) => (settle = resolve));
  return {
    /** Of the first answers; null where it is not known. */
    seen,
    asked: () => void (awaited += 1),
    /** @param {string | null} count null where there was no answer, or it has no count */
    answered(count) {
      if (isSettled) return;
      counts.push(count);
      awaited -= 1;
      isSettled = awaited === 0;
      if (isSettled) settle(oldest(counts));
    },
  };
}

/** @typedef {Record<string, string | number | null | undefined | readonly string[]>} Query */

export class ApiError extends Error {
  /** @param {number} status 0 when no answer came @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** @param {Query} query */
export function queryText(query) {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (Array.isArray(value)) for (const one of value) out.append(name, one);
    else if (value !== null && value !== undefined && value !== "") out.set(name, String(value));
  }
  const text = out.toString();
  return text ? `?${text}` : "";
}

const first = createFirstSeen();

/** How many changes there had been when the first answers of this page were read. */
export const firstSeen = first.seen;

export const unreachable = () => new ApiError(0, "unreachable", `No answer from the server at ${location.origin}.`);
export const unreadable = (/** @type {number} */ status) => new ApiError(status, "bad_answer", "The server's answer could not be read.");

/** @param {string} path @param {RequestInit} options */
export async function send(path, options) {
  first.asked();
  const response = await fetch(path, { credentials: "same-origin", ...options }).catch((error) => {
    first.answered(null);
    if (options.signal?.aborted) throw error;
    throw unreachable();
  });
  first.answered(response.headers.get("rangewatch-changes"));
  return response;
}

/** @param {Response} response */
export async function explain(response) {
  const body = await response.json().catch(() => ({}));
  return new ApiError(response.status, body.code ?? "http_error", body.error ?? `The server answered ${response.status}.`);
}

/** @param {string} path @param {Query} query @param {AbortSignal} [signal] */
export async function get(path, query, signal) {
  const response = await send(path + queryText(query), { signal });
  if (!response.ok) throw await explain(response);
  try {
    return await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw unreadable(response.status);
  }
}

/**
 * A file of the server's, whole: one that breaks off is none. `onRead` hears how many bytes have come.
 * @param {string} path @param {(bytes: number) => void} onRead @returns {Promise<{content: Blob, name: string | null}>}
 */
export async function getFile(path, onRead) {
  const response = await send(path, {});
  if (!response.ok || !response.body) throw await explain(response);
  const reader = response.body.getReader();
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const parts = [];
  let read = 0;
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      onRead((read += part.value.length));
    }
  } catch {
    throw new ApiError(0, "broken_off", "the server broke it off before its end.");
  }
  const name = /filename="([\w.-]+)"/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? null;
  return { content: new Blob(parts, { type: response.headers.get("content-type") ?? "" }), name };
}

/** @param {string} method @param {string} path @param {unknown} [body] @returns {Promise<any>} */
export async function change(method, path, body) {
  const asJson = body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  const response = await send(path, { method, ...asJson });
  if (!response.ok) throw await explain(response);
  return response.json();
}

/**
 * Calls `onLine` with each line of JSON as soon as it is whole, and the answer's status. What follows the last line break is none. What `onLine` throws ends it.
 * @param {string} path @param {Query} query @param {(line: any, status: number) => void} onLine @param {AbortSignal} [signal]
 */
export async function getLines(path, query, onLine, signal) {
  const response = await send(path + queryText(query), { signal });
  if (!response.ok || !response.body) throw await explain(response);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  /** @type {string[]} */
  let begun = [];
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const [rest, ...more] = decoder.decode(part.value, { stream: true }).split("\n");
      begun.push(rest);
      for (const next of more) {
        onLine(JSON.parse(begun.join("")), response.status);
        begun = [next];
      }
    }
  } catch (error) {
    reader.cancel().catch(() => {}); // or it would keep its connection, and the server at work
    if (error instanceof SyntaxError) throw unreadable(response.status);
    throw signal?.aborted || error instanceof ApiError ? error : unreachable();
  }
}
