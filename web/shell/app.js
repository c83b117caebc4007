// The application: mounts the page of an address, follows links and history, and shows the session and the connection's
// state.

import { access, logout } from "../api/client.js";
import { clockFrom, createLive } from "../api/live.js";
import { changedState, formatState, leftOut, parseState } from "../api/url_state.js";
import { startTheme } from "../charts/theme.js";
import { el, replace } from "../format/dom.js";
import { clip } from "../format/numbers.js";
import { PAGES } from "../pages/index.js";
import { createPalette } from "../widgets/controls/palette.js";
import { notFound } from "../widgets/states/error_state.js";
import { createFinder } from "./find.js";
import { createCommands, createKeyboardHelp, createLayerSearch, shortcutsOf, startKeys, startPaletteKey } from "./keyboard.js";
import { createNav } from "./navigation.js";
import { findPage } from "./router.js";
import { createSignals } from "./signals.js";

// Says that live updates stopped, and when they are back.

/** @param {HTMLElement} parent @returns {(status: import("../api/live.js").Status) => void} */
function connectionNote(parent) {
  const note = el(
    "p",
    { class: "connection", role: "status", "data-testid": "connection-lost", hidden: true },
    "Connection to the server lost. What you see is what was last received; trying again.",
  );
  parent.append(note);
  return (status) => {
    note.hidden = status !== "lost";
  };
}

// Who is logged in, and the way out; nothing where nobody is.

/** A place that shows it, and what to call when it may have changed. @param {() => void} changed after a logout */
function sessionPanel(changed) {
  const panel = el("div", { class: "session", "data-testid": "session" });
  const status = el("span", { role: "status" });

  async function leave() {
    status.textContent = "";
    try {
      await logout();
    } catch (error) {
      status.textContent = `Not logged out: ${error instanceof Error ? error.message : String(error)}`;
      return; // the session may still be there, and the page with it
    }
    await refresh();
    changed();
  }

  async function refresh() {
    const account = await access().catch(() => null);
    if (!account?.session) replace(panel);
    else replace(panel, el("button", { type: "button", class: "quiet", click: leave, title: `Logged in as ${account.name}` }, "Log out"), status);
  }

  return { panel, refresh };
}

/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {import("../types.js").ViewState} ViewState */

const root = /** @type {HTMLElement} */ (document.getElementById("page"));
const notice = /** @type {HTMLElement} */ (document.getElementById("notice"));
const live = createLive("/api/v1/live");
const session = sessionPanel(forget);
const shortcuts = shortcutsOf(PAGES);
const help = createKeyboardHelp(shortcuts);
const layerSearch = createLayerSearch(root);
const signals = createSignals({ current: () => knownRun(findPage(PAGES, location.pathname)?.params.id), notify, changed: () => nav.drawSwitches() });
const palette = createPalette(createFinder({ pages: PAGES, place, navigate, help: help.open, notifications: signals }));
const nav = createNav(/** @type {HTMLElement} */ (document.getElementById("nav")), PAGES, { session: session.panel, navigate, help: help.open, find: palette.open, notifications: signals });

/** What is mounted now. @type {{path: string, unmount: () => void, listeners: (() => void)[], stops: (() => void)[]} | null} */
let shown = null;

/** Letters shown of what an address has that cannot be shown. */
const MOST_ODD = 120;

/** The run as it was last fetched, which the navigation shows. @type {import("../types.js").Run | null} */
let lastRun = null;
/** The server's, as of that answer. */
let clock = clockFrom();
let lastRunMs = -Infinity;

function leave() {
  layerSearch.stop();
  shown?.stops.forEach((stop) => stop());
  shown?.unmount();
  shown = null;
}

/** @param {Record<string, string>} params @returns {PageContext} */
function contextFor(params) {
  /** @type {(() => void)[]} */
  const listeners = [];
  /** @type {(() => void)[]} */
  const stops = [];
  const mine = { path: location.pathname, unmount: () => {}, listeners, stops };
  shown = mine;
  /**
   * Not for a page that was left: an answer that comes late must not move or rename the one that is read now.
   * @template {unknown[]} A
   * @param {(...given: A) => void} act @returns {(...given: A) => void}
   */
  const whileShown = (act) => (...given) => void (shown === mine && act(...given));
  return {
    params,
    get state() {
      return parseState(location.search);
    },
    setState: whileShown(changeState),
    navigate: whileShown(navigate),
    onState: (listener) => void listeners.push(listener),
    onChange(run, listener) {
      const stop = live.subscribe(run, listener);
      stops.push(stop);
      return stop;
    },
    notify,
    setTitle: whileShown((title) => signals.setTitle(`${title} · rangewatch`)),
    remount: whileShown(remount),
    updateRun: whileShown(updateRun),
    knownRun: () => freshRun(params.id),
    clock: () => clock,
  };
}

/** Old answers are not shown first: a page would be drawn twice. Milliseconds, about what a visible page lets pass. */
const FRESH_MS = 12_000;

/** @param {string | undefined} id */
const freshRun = (id) => (performance.now() - lastRunMs < FRESH_MS ? knownRun(id) : null);

/** @param {string | undefined} id */
const knownRun = (id) => (lastRun && String(lastRun.id) === id ? lastRun : null);

/** Where the reader is. */
function place() {
  const match = findPage(PAGES, location.pathname);
  return { page: match?.page ?? null, params: match?.params ?? {}, run: knownRun(match?.params.id) };
}

/** @param {import("../types.js").Run} run */
function updateRun(run) {
  lastRun = run;
  clock = clockFrom(run.now_ns);
  lastRunMs = performance.now();
  navigation();
}

/** @returns {ReturnType<typeof findPage<import("../types.js").Page>>} */
function navigation() {
  const match = findPage(PAGES, location.pathname);
  const params = match?.params ?? {};
  const run = knownRun(params.id);
  nav.update({ page: match?.page ?? null, params, state: parseState(location.search), run });
  signals.update(run);
  return match;
}

function mount() {
  leave();
  root.replaceChildren();
  const match = navigation();
  const ctx = contextFor(match?.params ?? {});
  ctx.setTitle(match?.page.title ?? "No such page");
  document.documentElement.dataset.page = match?.page.id ?? "";
  const unmount = match ? match.page.mount(root, ctx) : notFound(root);
  if (shown) shown.unmount = unmount;
  const odd = match?.params.id ? leftOut(location.search) : [];
  if (odd.length) notify(`The address has parts that this page cannot show, and leaves out: ${clip(odd.join(", "), MOST_ODD)}.`);
}

/** Who logs out sees nothing more of what was known. */
function forget() {
  lastRun = null;
  mount();
}

/** The page anew, after a login too. */
function remount() {
  forget();
  void session.refresh();
}

/** After any change of address: the same page only hears of it, another one is mounted. */
function follow() {
  if (shown?.path !== location.pathname) {
    mount();
    window.scrollTo(0, 0);
    root.focus({ preventScroll: true });
    return;
  }
  navigation();
  for (const listener of shown.listeners) listener();
}

/** @param {string} path */
function navigate(path) {
  history.pushState(null, "", path);
  follow();
}

/** @param {Partial<ViewState>} patch @param {{replace?: boolean}} [options] */
function changeState(patch, { replace = false } = {}) {
  const address = location.pathname + formatState(changedState(parseState(location.search), patch));
  if (address === location.pathname + location.search) return;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  follow();
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let hideNotice;

/** @param {string} text */
function notify(text) {
  notice.textContent = text;
  notice.hidden = false;
  clearTimeout(hideNotice);
  hideNotice = setTimeout(() => (notice.hidden = true), 6000);
}

/** Links inside the site change the page in place; new-tab clicks stay the browser's. @param {MouseEvent} event */
function followLink(event) {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const anchor = event.target instanceof Element ? event.target.closest("a") : null;
  if (!anchor || anchor.origin !== location.origin || anchor.target || anchor.getAttribute("href")?.startsWith("#")) return;
  if (/^\/(api|static)\//.test(anchor.pathname)) return;
  event.preventDefault();
  navigate(anchor.pathname + anchor.search);
}

startTheme();
document.body.append(help.element, palette.element);
startKeys(shortcuts, createCommands({ nav, help: help.open, layerSearch, navigate, pages: PAGES }));
startPaletteKey(palette.open);
document.addEventListener("click", followLink);
window.addEventListener("popstate", follow);
remount();
void live.start(connectionNote(document.body));
