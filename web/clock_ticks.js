// The labels of a time axis: the clock's own round times, in the reader's time zone. Pure.

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
  const isOver = isOverMidnight({ start, stop }, origin_ns);
  const isFirstOfDay = (/** @type {number} */ i) => i === 0 || dayText(at[i], origin_ns) !== dayText(at[i - 1], origin_ns);
  return at.map((second, i) => ({ at: second, text: clockText(second, origin_ns, every, isOver && isFirstOfDay(i)) }));
}

/** @param {number} second @param {number} origin_ns @param {number} [every] seconds that need not be told apart @param {boolean} [isDated] with the day before it */
export function clockText(second, origin_ns, every = 1, isDated = false) {
  const day = dayText(second, origin_ns);
  if (every >= DAY_S) return day;
  const time = dateOf(second, origin_ns).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(every < 60 ? { second: "2-digit" } : {}) });
  return isDated ? `${day} ${time}` : time;
}

/** Whether times of the clock alone would not say of which day they are. @param {import("./types.js").StepRange} range seconds @param {number} origin_ns */
export const isOverMidnight = ({ start, stop }, origin_ns) => dayText(start, origin_ns) !== dayText(stop, origin_ns);

/** The short name of the reader's time zone, as it is at that time: in summer it may be another. @param {number} second @param {number} origin_ns */
export function zoneName(second, origin_ns) {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(dateOf(second, origin_ns));
  return parts.find(({ type }) => type === "timeZoneName")?.value ?? "";
}

/** @param {number} second @param {number} origin_ns */
const dateOf = (second, origin_ns) => new Date(origin_ns / 1e6 + second * 1e3);

/** @param {number} second @param {number} origin_ns */
const dayText = (second, origin_ns) => dateOf(second, origin_ns).toLocaleDateString("en-GB", { day: "2-digit", month: "short" });
