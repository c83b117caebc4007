// The tree of modules beside the heatmap: which items are open, in which order, and how arrow keys walk it.

import { NONE_CLOSED } from "../../charts/heatmap.js";
import { badnessOf, heatOf, stateLabel, valueText } from "../../charts/statistics.js";
import { el, replace } from "../../format/dom.js";
import { clip, count, plural, steps } from "../../format/numbers.js";

/** @typedef {import("../../charts/statistics.js").Statistic} Statistic */

/** A narrower window begins with the tree folded. Pixels. */
const NARROW = 820;
/** Pixels a level is further in. */
const INDENT = 12;

/** @param {import("../../types.js").PageContext} ctx */
export function createModuleTree(ctx) {
  const list = el("ul", { role: "tree", "aria-label": "Modules", class: "module-tree", keydown: key });
  const note = el("p", { class: "muted module-note", hidden: true });
  const closeAll = el("button", { type: "button", class: "quiet", click: () => ctx.setState({ closed: outermost(modules) }) }, "Close all");
  const openAll = el("button", { type: "button", class: "quiet", click: openEach }, "Open all");
  const summary = el("summary", {}, "Modules");
  const element = el("details", { class: "panel layers-tree", open: window.innerWidth > NARROW, hidden: true }, summary, el("div", { class: "module-buttons" }, closeAll, openAll), list, note);
  /** @type {readonly Module[]} */
  let modules = [];
  /** @type {Item[]} */
  let items = [];
  /** Where Tab enters the tree. */
  let current = "";
  let shown = "";
  /** @type {Statistic | null} */
  let of = null;
  /** Whether the server closes blocks where the reader has chosen nothing. */
  let areBands = false;
  /** As the figure has them: the reader's own choice, or the server's. @type {readonly string[]} */
  let closed = [];
  /** Modules that the reader has opened here, besides those that are open at first; all of them after "Open all". @type {Set<string>} */
  const unfolded = new Set();
  let isAllOpen = false;

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
    if (item.isGroup) toggle(item);
    else if (item.tensor !== null) ctx.setState({ tensor: item.tensor });
  }

  /** One that is only folded opens here alone: its rows are there already. @param {Item} item */
  function toggle(item) {
    if (item.isClosed) unfolded.add(item.path);
    if (item.isFolded) redraw();
    else choose(toggled(closed, item.path));
  }

  function openEach() {
    isAllOpen = true;
    if (closed.length) choose([]);
    else redraw();
  }

  /** @param {readonly string[]} paths */
  function choose(paths) {
    ctx.setState({ closed: paths.length || !areBands ? [...paths] : [NONE_CLOSED] });
  }

  function redraw() {
    shown = "";
    draw();
  }

  /** @param {string} path */
  function focus(path) {
    current = path;
    for (const node of nodes()) {
      node.tabIndex = node.dataset.path === path ? 0 : -1;
      if (node.tabIndex === 0) node.focus();
    }
  }

  function draw() {
    const { sort, q } = ctx.state;
    const now = JSON.stringify([modules, of?.name, sort, closed, q]);
    if (now === shown) return;
    shown = now;
    const isOpen = (/** @type {Module} */ module) => isAllOpen || q !== "" || unfolded.has(module.path) || isOpenAtFirst(module);
    items = visibleItems(modules, sort, closed, of?.worst, isOpen);
    if (!items.some((item) => item.path === current)) current = items[0]?.path ?? "";
    const isFocused = list.contains(document.activeElement);
    replace(list, ...items.map((item) => line(item, of)));
    if (isFocused) focus(current);
    const left = modules.reduce((sum, module) => sum + module.hidden_children, 0);
    note.hidden = left === 0;
    note.textContent = `+N: modules inside that are not listed, ${count(left)} in all. A name filter lists them.`;
    openAll.disabled = items.every((item) => !item.isClosed);
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
    /** @param {readonly Module[]} given @param {Statistic | null} statistic @param {readonly string[]} [bands] modules that the server closed, in a large model */
    update(given, statistic, bands) {
      modules = given;
      of = statistic;
      areBands = bands !== undefined || (areBands && ctx.state.closed.length > 0);
      closed = bands ?? ctx.state.closed.filter((path) => path !== NONE_CLOSED);
      draw();
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
  if (isBad(item)) return item.began ? `${steps({ start: item.began[0], stop: item.began[1] + 1 }).replace(/^steps? /, "")}${item.is_first ? ", first" : ""}` : stateLabel(item.state);
  if (item.worst !== null) return valueText(statistic, item.worst);
  return item.state === "value" ? "not measured" : stateLabel(item.state);
}

// The module tree as a list of what is open to view: nesting, order, which are closed.

/** @typedef {import("../../types.js").Module} Module */
/** @typedef {Module & {name: string, isGroup: boolean, isClosed: boolean, isFolded: boolean, parent: string | null}} Item `isClosed`: nothing in it is listed, `isFolded`: but its rows are there */
/** @typedef {{module: Module, children: Branch[]}} Branch */

/** Two levels, but no block of a stack of them; and the way to where a NaN or Inf was first. @param {Module} module */
const isOpenAtFirst = ({ path, depth, is_first: isFirst }) => isFirst === true || (depth < 2 && !/(^|\.)\d+$/.test(path));

/** The server takes no more. */
export const MOST_CLOSED = 200;

/**
 * What is to be seen of the tree, top to bottom: nothing inside a closed module is.
 * @param {readonly Module[]} modules depth first @param {string} sort @param {readonly string[]} closed @param {Statistic["worst"]} worst which end @param {(module: Module) => boolean} [isOpen] of those that are not closed
 * @returns {Item[]}
 */
export function visibleItems(modules, sort, closed, worst = "least", isOpen = () => true) {
  const shut = new Set(closed);
  /** @type {Item[]} */
  const items = [];
  /** @param {Branch[]} branches @param {string | null} parent */
  function add(branches, parent) {
    for (const { module, children } of sorted(branches, sort, worst)) {
      const isFolded = !shut.has(module.path) && isGroup(module) && !isOpen(module);
      const isClosed = shut.has(module.path) || isFolded;
      items.push({ ...module, name: nameOf(module.path, parent), isGroup: isGroup(module), isClosed, isFolded, parent });
      if (!isClosed) add(children, module.path);
    }
  }
  add(branchesOf(modules), null);
  return items;
}

/** The root's own tensors are no group: it is above all the others, and one row of it would stand for all of them. @param {Module} module */
const isGroup = ({ count, path }) => count > 1 && path !== "";

/** @param {readonly Module[]} modules depth first @returns {Branch[]} */
function branchesOf(modules) {
  /** @type {Branch[]} */
  const roots = [];
  /** @type {Branch[]} */
  const above = [];
  for (const module of modules) {
    const branch = { module, children: [] };
    (module.depth === 0 ? roots : above[module.depth - 1].children).push(branch);
    above[module.depth] = branch;
  }
  return roots;
}

/** @param {Branch[]} branches @param {string} sort @param {Statistic["worst"]} worst */
function sorted(branches, sort, worst) {
  if (sort === "name") return [...branches].sort((a, b) => a.module.path.localeCompare(b.module.path, "en", { numeric: true }));
  if (sort === "worst") return [...branches].sort((a, b) => badness(b.module, worst) - badness(a.module, worst) || 0);
  return branches;
}

/** @param {Module} module @param {Statistic["worst"]} end */
function badness({ state, worst }, end) {
  if (state === "nan" || state === "inf") return 1e9;
  if (worst === null) return -1e9;
  return badnessOf({ worst: end }, worst);
}

/** @param {string} path @param {string | null} parent */
const nameOf = (path, parent) => (parent === null ? path : path.slice(parent.length + 1)) || "(model)";

/** The closed modules after one is closed or opened. @param {readonly string[]} closed @param {string} path */
export function toggled(closed, path) {
  return closed.includes(path) ? closed.filter((one) => one !== path) : [...closed, path].slice(-MOST_CLOSED);
}

/** The outermost groups that stand beside each other: closing a lone root would leave one row, so that is the last resort. @param {readonly Module[]} modules @returns {string[]} */
export function outermost(modules) {
  const groups = modules.filter(isGroup);
  const deepest = Math.max(0, ...groups.map((module) => module.depth));
  for (let depth = 0; depth <= deepest; depth += 1) {
    const level = groups.filter((module) => module.depth === depth);
    if (level.length > 1) return level.slice(0, MOST_CLOSED).map((module) => module.path);
  }
  return groups.slice(0, 1).map((module) => module.path);
}

/**
 * Where an arrow key leads: to another item, or "open" or "close" for this one.
 * @param {readonly Item[]} items @param {number} at @param {string} key @returns {number | "open" | "close" | null}
 */
export function keyLeads(items, at, key) {
  const item = items[at];
  if (!item) return null;
  if (key === "ArrowDown") return Math.min(items.length - 1, at + 1);
  if (key === "ArrowUp") return Math.max(0, at - 1);
  if (key === "Home") return 0;
  if (key === "End") return items.length - 1;
  if (key === "ArrowRight") return item.isGroup && item.isClosed ? "open" : items[at + 1]?.parent === item.path ? at + 1 : null;
  if (key !== "ArrowLeft") return null;
  if (item.isGroup && !item.isClosed) return "close";
  return item.parent === null ? null : items.findIndex((one) => one.path === item.parent);
}
