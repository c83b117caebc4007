// The list of keyboard shortcuts, and the listener for them. Never while something is typed, and only if the reader
// wants them.

const KEPT = "rangewatch.keys";
/** A second key of two comes within this time. Milliseconds. */
const PAIR_MS = 1500;

/** @typedef {{group: string, keys: string[], text: string, command?: string, page?: string}} Key `keys`: any of them; "g l" is one after the other */

/** @param {string} letter @param {string} page @param {string} title @returns {Key} */
const go = (letter, page, title) => ({ group: "Go to", keys: [`g ${letter}`], text: title, page });

/** Those without command or page are the figures' own. @type {readonly Key[]} */
export const KEYS = [
  { group: "Anywhere", keys: ["?"], text: "This list", command: "help" },
  { group: "Anywhere", keys: ["/"], text: "Search the layers", command: "search" },
  { group: "Anywhere", keys: ["r"], text: "Choose another run", command: "pick-run" },
  go("r", "runs", "Runs"),
  go("o", "overview", "Overview"),
  go("l", "layers", "Layers"),
  go("s", "loss-scale", "Loss scale"),
  go("c", "collectives", "Collectives"),
  go("g", "gpus", "GPUs"),
  go("h", "hang", "Hang"),
  go("e", "environment", "Environment"),
  go("a", "alerts", "Alerts"),
  go("t", "agent", "Agent"),
  { group: "Steps", keys: ["["], text: "Earlier steps", command: "pan-earlier" },
  { group: "Steps", keys: ["]"], text: "Later steps", command: "pan-later" },
  { group: "Steps", keys: ["+", "="], text: "Fewer steps, larger", command: "zoom-in" },
  { group: "Steps", keys: ["-", "_"], text: "More steps, smaller", command: "zoom-out" },
  { group: "Steps", keys: ["0"], text: "All steps", command: "all-steps" },
  { group: "Steps", keys: ["f"], text: "Follow the newest step, or stop", command: "follow" },
  { group: "In a figure", keys: ["ArrowLeft", "ArrowRight"], text: "Step by step" },
  { group: "In a figure", keys: ["ArrowUp", "ArrowDown"], text: "Row by row of a heatmap" },
  { group: "In a figure", keys: ["Enter"], text: "Open what is pointed at" },
  { group: "In a figure", keys: ["Shift+Enter"], text: "Open it the other way: a layer over the steps, a rank's step" },
  { group: "In a figure", keys: ["Escape"], text: "Give up a drag, point at nothing" },
  { group: "In the strip of steps", keys: ["ArrowLeft", "ArrowRight"], text: "Move the window" },
  { group: "In the strip of steps", keys: ["+", "-"], text: "Make it narrower or wider" },
  { group: "In the strip of steps", keys: ["Home", "End"], text: "To the first or the newest step" },
];

/** The key of a command, for a hint. @param {string} command */
export const keyOf = (command) => KEYS.find((one) => one.command === command)?.keys[0] ?? "";

/** The entry of the keys pressed, one or two. @param {string} pressed @returns {Key | null} */
export const keyFor = (pressed) => KEYS.find((one) => (one.command || one.page) && one.keys.includes(pressed)) ?? null;

/** Whether a key begins a pair. @param {string} key */
const beginsPair = (key) => KEYS.some((one) => one.page && one.keys.some((keys) => keys.startsWith(`${key} `)));

/** Single keys can be switched off: who speaks to the computer presses many of them. */
export function areKeysOn() {
  try {
    return localStorage.getItem(KEPT) !== "off";
  } catch {
    return true; // storage may be forbidden
  }
}

/** @param {boolean} isOn */
export function switchKeys(isOn) {
  try {
    localStorage.setItem(KEPT, isOn ? "on" : "off");
  } catch {
    // they then stay on
  }
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  if (!(target instanceof HTMLElement)) return false;
  const isText = target instanceof HTMLInputElement && !["checkbox", "radio", "button", "submit", "range"].includes(target.type);
  return isText || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable;
}

/** With AltGr some keyboards write brackets. @param {KeyboardEvent} event */
const isPlain = (event) => event.getModifierState("AltGraph") || !(event.ctrlKey || event.metaKey || event.altKey);

/** @param {(key: Key) => boolean} act says whether there was something to do */
export function startKeys(act) {
  let first = "";
  let firstMs = 0;

  /** @param {KeyboardEvent} event */
  function pressed(event) {
    const isOurs = !event.defaultPrevented && !event.isComposing && isPlain(event) && !isTyping(event.target);
    if (!isOurs || !areKeysOn() || document.querySelector("dialog[open]")) return;
    const isPair = first !== "" && event.timeStamp - firstMs < PAIR_MS;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key; // whatever Caps Lock says
    const found = keyFor(isPair ? `${first} ${key}` : key);
    first = !isPair && beginsPair(key) ? key : "";
    firstMs = event.timeStamp;
    if (found && act(found)) event.preventDefault();
  }

  document.addEventListener("keydown", pressed);
}
