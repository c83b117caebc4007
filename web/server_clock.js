// The server's clock, carried on by ours between two answers: the two machines may disagree. Pure but for the clock.

/** @param {number | undefined} nowNs as the server said it just now @returns {() => number} nanoseconds */
export function clockFrom(nowNs = Date.now() * 1e6) {
  const receivedMs = performance.now();
  return () => nowNs + (performance.now() - receivedMs) * 1e6;
}
