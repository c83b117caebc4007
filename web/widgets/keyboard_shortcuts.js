// The keyboard shortcuts that are not a page's own: commands of the shell and of the strip of steps, and what a figure or
// the strip does with keys while it has the focus.

/** @typedef {{group: string, keys: string[], text: string, command?: string, page?: string}} Shortcut `keys`: any of them; "g l" is one after the other */

/** Those without command are the figures' own. @type {readonly Shortcut[]} */
export const SHORTCUTS = [
  { group: "Anywhere", keys: ["?"], text: "This list", command: "help" },
  { group: "Anywhere", keys: ["Ctrl+k"], text: "Find a run, page, layer, rank, step, alert or action" },
  { group: "Anywhere", keys: ["/"], text: "Search the layers", command: "search" },
  { group: "Anywhere", keys: ["r"], text: "Choose another run", command: "pick-run" },
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
export const keyOf = (command) => SHORTCUTS.find((one) => one.command === command)?.keys[0] ?? "";
