// The module tree as a list of what is open to view: nesting, order, which are closed. Pure.

/**
 * As the server tells of it.
 * @typedef {object} Module
 * @property {string} path
 * @property {number} depth
 * @property {number} count tensors in it
 * @property {number | null} tensor the only one
 * @property {string} state the worst of any of them
 * @property {number | null} worst the worst value, on the statistic's scale
 * @property {boolean} has_children
 * @property {number} hidden_children not in the list
 */
/** @typedef {Module & {name: string, isGroup: boolean, isClosed: boolean, parent: string | null}} Item */
/** @typedef {{module: Module, children: Branch[]}} Branch */

/** The server takes no more. */
export const MOST_CLOSED = 200;

/**
 * What is to be seen of the tree, top to bottom: nothing inside a closed module is.
 * @param {readonly Module[]} modules depth first @param {string} sort @param {readonly string[]} closed @param {"least" | "most"} worst which end
 * @returns {Item[]}
 */
export function visibleItems(modules, sort, closed, worst = "least") {
  const shut = new Set(closed);
  /** @type {Item[]} */
  const items = [];
  /** @param {Branch[]} branches @param {string | null} parent */
  function add(branches, parent) {
    for (const { module, children } of sorted(branches, sort, worst)) {
      const isClosed = shut.has(module.path);
      items.push({ ...module, name: nameOf(module.path, parent), isGroup: isGroup(module), isClosed, parent });
      if (!isClosed) add(children, module.path);
    }
  }
  add(branchesOf(modules), null);
  return items;
}

/** The root's own tensors are no group: it is above all the others, and one row of it would say that it is all of them. @param {Module} module */
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

/** @param {Branch[]} branches @param {string} sort @param {"least" | "most"} worst */
function sorted(branches, sort, worst) {
  if (sort === "name") return [...branches].sort((a, b) => a.module.path.localeCompare(b.module.path, "en", { numeric: true }));
  if (sort === "worst") return [...branches].sort((a, b) => badness(b.module, worst) - badness(a.module, worst) || 0);
  return branches;
}

/** @param {Module} module @param {"least" | "most"} end */
function badness({ state, worst }, end) {
  if (state === "nan" || state === "inf") return 1e9;
  if (worst === null) return -1e9;
  return end === "least" ? -worst : worst;
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
