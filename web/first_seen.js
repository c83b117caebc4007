// What the server had counted of changes when a page read its first answers: whether any came before it could listen. Pure.

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
  let isTold = false;
  /** @type {(count: string | null) => void} */
  let tell;
  /** @type {Promise<string | null>} */
  const seen = new Promise((resolve) => (tell = resolve));
  return {
    /** Of the first answers; null where it is not known. */
    seen,
    asked: () => void (awaited += 1),
    /** @param {string | null} count null where there was no answer, or it did not say */
    answered(count) {
      if (isTold) return;
      counts.push(count);
      awaited -= 1;
      isTold = awaited === 0;
      if (isTold) tell(oldest(counts));
    },
  };
}
