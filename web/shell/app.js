// The application: mounts the page of an address, follows links and history, and shows the session and the connection's
// state.

import { access, logout } from "../api/client.js";
import { clockFrom, createLive } from "../api/live.js";
import { changedState, formatState, parseState } from "../api/url_state.js";
import { startTheme } from "../charts/theme.js";
import { el, replace } from "../format/dom.js";
import { PAGES } from "../pages/index.js";
import { notFound } from "../widgets/error_state.js";
import { startKeys } from "../widgets/keys.js";
import { createCommands, createKeyboardHelp, createLayerSearch } from "./keyboard_help.js";
import { createNav } from "./navigation.js";
import { findPage } from "./router.js";

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
  const said = el("span", { role: "status" });

  async function leave() {
    said.textContent = "";
    try {
      await logout();
    } catch (error) {
      said.textContent = `Not logged out: ${error instanceof Error ? error.message : String(error)}`;
      return; // the session may still be there, and the page with it
    }
    await look();
    changed();
  }

  async function look() {
    const found = await access().catch(() => null);
    if (!found?.session) replace(panel);
    else replace(panel, el("button", { type: "button", class: "quiet", click: leave, title: `Logged in as ${found.name}` }, "Log out"), said);
  }

  return { panel, look };
}

/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {import("../types.js").ViewState} ViewState */

const root = /** @type {HTMLElement} */ (document.getElementById("page"));
const said = /** @type {HTMLElement} */ (document.getElementById("said"));
const live = createLive("/api/v1/live");
const session = sessionPanel(forget);
const help = createKeyboardHelp();
const layerSearch = createLayerSearch(root);
const nav = createNav(/** @type {HTMLElement} */ (document.getElementById("nav")), PAGES, { session: session.panel, navigate, help: help.open });

/** What is mounted now. @type {{path: string, unmount: () => void, listeners: (() => void)[], stops: (() => void)[]} | null} */
let shown = null;

/** The run as it was last fetched, which the navigation tells of. @type {import("../types.js").Run | null} */
let seenRun = null;
/** The server's, as of that answer. */
let clock = clockFrom();
let seenMs = -Infinity;

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
    say,
    setTitle: whileShown((title) => void (document.title = `${title} · rangewatch`)),
    remount: whileShown(remount),
    sawRun: whileShown(sawRun),
    knownRun: () => freshRun(params.id),
    clock: () => clock,
  };
}

/** Old facts are no start: a page would be drawn twice. Milliseconds, about what a page that is looked at lets pass. */
const FRESH_MS = 12_000;

/** @param {string | undefined} id */
const freshRun = (id) => (performance.now() - seenMs < FRESH_MS ? knownRun(id) : null);

/** @param {string | undefined} id */
const knownRun = (id) => (seenRun && String(seenRun.id) === id ? seenRun : null);

/** @param {import("../types.js").Run} run */
function sawRun(run) {
  seenRun = run;
  clock = clockFrom(run.now_ns);
  seenMs = performance.now();
  navigation();
}

/** @returns {ReturnType<typeof findPage<import("../types.js").Page>>} */
function navigation() {
  const found = findPage(PAGES, location.pathname);
  const params = found?.params ?? {};
  nav.update({ page: found?.page ?? null, params, state: parseState(location.search), run: knownRun(params.id) });
  return found;
}

function mount() {
  leave();
  root.replaceChildren();
  const found = navigation();
  const ctx = contextFor(found?.params ?? {});
  ctx.setTitle(found?.page.title ?? "No such page");
  const unmount = found ? found.page.mount(root, ctx) : notFound(root);
  if (shown) shown.unmount = unmount;
}

/** Who logs out sees nothing more of what was known. */
function forget() {
  seenRun = null;
  mount();
}

/** The page anew, after a login too. */
function remount() {
  forget();
  void session.look();
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
let hush;

/** @param {string} text */
function say(text) {
  said.textContent = text;
  said.hidden = false;
  clearTimeout(hush);
  hush = setTimeout(() => (said.hidden = true), 6000);
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
document.body.append(help.element);
startKeys(createCommands({ nav, help: help.open, layerSearch, navigate }));
document.addEventListener("click", followLink);
window.addEventListener("popstate", follow);
remount();
void live.start(connectionNote(document.body));
