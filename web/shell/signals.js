// The open run's verdict where the page is not looked at: a mark in the tab's title and icon, and, when the reader has asked
// for them, notifications of the browser.

import * as api from "../api/client.js";
import { clip } from "../format/numbers.js";

/** @typedef {import("../types.js").Run} Run */

const STORED = "rangewatch.notifications";
/** A hidden tab hears of no changes: so often it asks, and only where notifications are on. Milliseconds. */
const ASK_MS = 15_000;
const MARKS = /** @type {Record<string, string>} */ ({ critical: "■ ", warning: "▲ " });
const COLOURS = /** @type {Record<string, string>} */ ({ critical: "#b3003c", warning: "#985600" });

/** @param {string | null} level @returns {level is "critical" | "warning"} */
const isMarked = (level) => level === "critical" || level === "warning";

/** A title with the mark of a level before it, and no other. Pure. @param {string} title @param {string | null} level */
export const markedTitle = (title, level) => (isMarked(level) ? MARKS[level] : "") + title.replace(/^[■▲] /, "");

/** The verdict's first sentence and the rest, as on the page. Pure. @param {import("../types.js").Verdict} verdict */
export function headlineOf({ parts }) {
  const [first, ...rest] = parts.map(([, text]) => text);
  return { title: (first ?? "").trim(), body: rest.join("").trim() };
}

/** Whether a verdict is news to somebody who saw another: a problem, and not the one that was open before. Pure. @param {Pick<Run, "id" | "verdict">} run @param {{id: number, level: string, title: string} | null} before */
export function isNews({ id, verdict }, before) {
  if (before === null || before.id !== id || !isMarked(verdict.level)) return false;
  return headlineOf(verdict).title !== before.title || (verdict.level === "critical" && before.level !== "critical");
}

/** The site's icon with the level's dot on it. @param {string} level */
const iconOf = (level) =>
  `data:image/svg+xml,${encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#0b62a8"/><path d="M2 11h3l2-6 3 8 2-5h2" fill="none" stroke="#fff" stroke-width="1.6" stroke-linejoin="round"/><circle cx="11.5" cy="4.5" r="4.2" fill="${COLOURS[level]}" stroke="#fff"/></svg>`)}`;

function isAsked() {
  try {
    return localStorage.getItem(STORED) === "on";
  } catch {
    return false; // storage may be forbidden
  }
}

/** @param {{current: () => Run | null, notify: (text: string) => void, changed: () => void}} shell notify: a line to the reader; changed: when they are on or off */
export function createSignals({ current, notify, changed }) {
  const icon = /** @type {HTMLLinkElement | null} */ (document.querySelector('link[rel="icon"]'));
  const usual = icon?.getAttribute("href") ?? "";
  /** @type {{id: number, level: string, title: string} | null} */
  let seen = null;
  /** @type {string | null} */
  let level = null;
  let title = "";
  setInterval(() => void ask(), ASK_MS);

  const isOn = () => isAsked() && "Notification" in window && Notification.permission === "granted";

  function draw() {
    document.title = markedTitle(title, level);
    const href = isMarked(level) ? iconOf(level) : usual;
    if (icon && icon.getAttribute("href") !== href) icon.setAttribute("href", href);
  }

  /** The newest answer about the open run; null where none is open. @param {Run | null} run */
  function update(run) {
    level = run?.verdict.level ?? null;
    draw();
    if (!run) return;
    if (isOn() && isNews(run, seen)) send(run);
    seen = { id: run.id, level: run.verdict.level, title: headlineOf(run.verdict).title };
  }

  /** @param {Run} run */
  function send({ id, name, title: given, verdict }) {
    const { title: head, body } = headlineOf(verdict);
    try {
      const shown = new Notification(head, { body: `${clip(given || name, 60)}: ${body}`, tag: `rangewatch-${id}` });
      shown.onclick = () => window.focus();
    } catch {
      // some browsers of phones allow them to service workers alone
    }
  }

  async function ask() {
    const run = current();
    if (!run || !document.hidden || !isOn()) return;
    const next = await api.run(String(run.id)).catch(() => null);
    if (next && current()?.id === next.id) update(next);
  }

  /** The browser asks for permission after a press alone. */
  async function toggle() {
    if (isOn()) store("off");
    else if (!("Notification" in window)) notify("This browser has no notifications.");
    else if ((await Notification.requestPermission()) === "granted") store("on");
    else notify("The browser does not allow notifications of this page.");
    changed();
  }

  return {
    update,
    toggle: () => void toggle(),
    text: () => (isOn() ? "Notifications: on" : "Notifications: off"),
    /** @param {string} text of the page */
    setTitle(text) {
      title = text;
      draw();
    },
  };
}

/** @param {"on" | "off"} value */
function store(value) {
  try {
    localStorage.setItem(STORED, value);
  } catch {
    // they then stay off
  }
}
