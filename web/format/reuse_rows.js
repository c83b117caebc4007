// Replaces rows or parts and reuses the nodes that stay the same, so that focus and selection stay.

/** What can have the focus within a row. */
const CONTROLS = "a, button, input, select, summary";

/** @param {Element} row */
const keyOf = (row) => row.getAttribute("data-key");

/**
 * Each row has a `data-key` of its own among them. A row that had the focus and is another now keeps it, at the same place.
 * @param {Element} parent whose children are rows alone @param {readonly Element[]} next
 */
export function reuseRows(parent, next) {
  const focused = placeOf(parent);
  const old = new Map(Array.from(parent.children, (row) => [keyOf(row), row]));
  const wanted = next.map((row) => sameOf(old.get(keyOf(row)), row));
  const remaining = new Set(wanted);
  for (const row of [...parent.children]) if (!remaining.has(row)) row.remove();
  for (const [i, row] of wanted.entries()) {
    if (parent.children[i] !== row) parent.insertBefore(row, parent.children[i] ?? null);
  }
  if (focused && !parent.contains(document.activeElement)) controlsOf(wanted.find((row) => keyOf(row) === focused.key))[focused.at]?.focus();
}

/** @param {Element | undefined} old @param {Element} row */
const sameOf = (old, row) => (old?.isEqualNode(row) ? old : row);

/** @param {Element | undefined} row @returns {HTMLElement[]} */
const controlsOf = (row) => (row ? [.../** @type {NodeListOf<HTMLElement>} */ (row.querySelectorAll(CONTROLS))] : []);

/** The row and control that have the focus. @param {Element} parent */
function placeOf(parent) {
  const control = document.activeElement;
  const row = [...parent.children].find((one) => one.contains(control));
  return row && control instanceof HTMLElement ? { key: keyOf(row), at: controlsOf(row).indexOf(control) } : null;
}

// New content in place of old, where a part that stays the same stays the same node: focus and selection stay.

/** @param {Element} place whose content is these parts alone, each at its own place @param {...(HTMLElement | null)} parts */
export function reuseParts(place, ...parts) {
  const shown = parts.flatMap((part, at) => {
    part?.setAttribute("data-key", String(at));
    return part ?? [];
  });
  reuseRows(place, shown);
}
