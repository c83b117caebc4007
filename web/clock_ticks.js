// The labels of a time axis: the clock's own round times. Pure.

/** Seconds between two labels. */
const EVERY_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
/** Seconds from where on the day is told, and not the second. */
const DAY_S = 86400;

/**
 * @param {import("./types.js").StepRange} range seconds @param {number} origin_ns Unix time of second 0 @param {number} most labels
 * @returns {{at: number, text: string}[]}
 */
export function clockTicks({ start, stop }, origin_ns, most) {
  const span = stop - start;
  const every = EVERY_S.find((one) => span / one <= most) ?? DAY_S * Math.ceil(span / most / DAY_S);
  const origin = origin_ns / 1e9 - new Date(origin_ns / 1e6).getTimezoneOffset() * 60;
  const first = Math.ceil((origin + start) / every) * every - origin;
  const at = Array.from({ length: Math.max(0, Math.floor((stop - first) / every) + 1) }, (_, i) => first + i * every);
  return at.map((second) => ({ at: second, text: clockText(second, origin_ns, every) }));
}

/** @param {number} second @param {number} origin_ns @param {number} [every] seconds that need not be told apart */
export function clockText(second, origin_ns, every = 1) {
  const when = new Date(origin_ns / 1e6 + second * 1e3);
  if (every >= DAY_S) return when.toLocaleDateString("en-GB", { day: "2-digit", month: "short" });
  return when.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(every < 60 ? { second: "2-digit" } : {}) });
}
