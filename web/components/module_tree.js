// The modules beside the heatmap: each with its worst, closed into one row or open. Arrow keys walk it.

import { el, replace } from "../dom.js";
import { clip, count, plural } from "../format.js";
import { heatOf, stateWord } from "../headroom.js";
import { keyLeads, outermost, toggled, visibleItems } from "../module_tree_model.js";
import { valueText } from "../statistics.js";

/** @typedef {import("../module_tree_model.js").Item} Item */
/** @typedef {import("../module_tree_model.js").Module} Module */
/** @typedef {import("../statistics.js").Statistic} Statistic */

/** A narrower window begins with the tree folded. Pixels. */
const NARROW = 820;
/** Pixels a level is further in. */
const INDENT = 12;

/** @param {import("../types.js").PageContext} ctx */
export function createModuleTree(ctx) {
  const list = el("ul", { role: "tree", "aria-label": "Modules", class: "module-tree", keydown: key });
  const note = el("p", { class: "muted module-note", hidden: true });
  const closeAll = el("button", { type: "button", class: "quiet", click: () => ctx.setState({ closed: outermost(modules) }) }, "Close all");
  const openAll = el("button", { type: "button", class: "quiet", click: () => ctx.setState({ closed: [] }) }, "Open all");
  const summary = el("summary", {}, "Modules");
  const element = el("details", { class: "panel layers-tree", open: window.innerWidth > NARROW, hidden: true }, summary, el("div", { class: "module-buttons" }, closeAll, openAll), list, note);
  /** @type {readonly Module[]} */
  let modules = [];
  /** @type {Item[]} */
  let items = [];
  /** Where Tab enters the tree. */
  let current = "";
  let shown = "";

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const at = items.findIndex((item) => item.path === current);
    if (event.key === "Enter" || event.key === " ") act(items[at]);
    else {
      const next = keyLeads(items, at, event.key);
      if (next === null) return;
      if (typeof next === "number") focus(items[next].path);
      else act(items[at]);
    }
    event.preventDefault();
  }

  /** Closes or opens a module; the only tensor of one opens beside the layers. @param {Item | undefined} item */
  function act(item) {
    if (!item) return;
    current = item.path;
    if (item.isGroup) ctx.setState({ closed: toggled(ctx.state.closed, item.path) });
    else if (item.tensor !== null) ctx.setState({ tensor: item.tensor });
  }

  /** @param {string} path */
  function focus(path) {
    current = path;
    for (const node of nodes()) {
      node.tabIndex = node.dataset.path === path ? 0 : -1;
      if (node.tabIndex === 0) node.focus();
    }
  }

  const nodes = () => /** @type {HTMLElement[]} */ ([...list.children]);

  /** @param {Item} item @param {Statistic | null} statistic */
  function line(item, statistic) {
    const sign = item.isGroup ? (item.isClosed ? "▸" : "▾") : "";
    const node = el(
      "li",
      {
        role: "treeitem", "aria-level": item.depth + 1, "aria-expanded": item.isGroup ? String(!item.isClosed) : null, "data-path": item.path,
        tabindex: item.path === current ? 0 : -1, title: `${clip(item.path)}: ${plural(item.count, "tensor")}`, click: () => act(item), focus: () => (current = item.path),
      },
      el("span", { class: "module-sign", "aria-hidden": "true" }, sign),
      el("span", { class: "module-name" }, clip(item.name, 80)),
      item.hidden_children > 0 && el("span", { class: "muted" }, ` +${count(item.hidden_children)}`),
      el("span", { class: "module-worst heat", "data-heat": heat(item, statistic) }, worstText(item, statistic)),
    );
    node.style.paddingLeft = `${item.depth * INDENT + 4}px`;
    return node;
  }

  return {
    element,
    /** @param {readonly Module[]} given @param {Statistic | null} statistic */
    update(given, statistic) {
      const { sort, closed } = ctx.state;
      const now = JSON.stringify([given, statistic?.name, sort, closed]);
      if (now === shown) return;
      shown = now;
      modules = given;
      items = visibleItems(modules, sort, closed, statistic?.worst);
      if (!items.some((item) => item.path === current)) current = items[0]?.path ?? "";
      const isFocused = list.contains(document.activeElement);
      replace(list, ...items.map((item) => line(item, statistic)));
      if (isFocused) focus(current);
      const left = modules.reduce((sum, module) => sum + module.hidden_children, 0);
      note.hidden = left === 0;
      note.textContent = `+N: modules inside that are not listed, ${count(left)} in all. A name filter lists them.`;
      openAll.disabled = closed.length === 0;
    },
  };
}

/** @param {Item} item */
const isBad = ({ state }) => state === "nan" || state === "inf";

/** @param {Item} item @param {Statistic | null} statistic */
function heat(item, statistic) {
  if (isBad(item)) return "bad";
  return item.worst === null || (statistic && statistic.scale !== "bits") ? null : heatOf(item.worst);
}

/** @param {Item} item @param {Statistic | null} statistic */
function worstText(item, statistic) {
  if (isBad(item)) return stateWord(item.state);
  if (item.worst !== null) return valueText(statistic, item.worst);
  return item.state === "value" ? "not measured" : stateWord(item.state);
}
