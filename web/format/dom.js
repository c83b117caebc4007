// Builds DOM elements, and notices when one changes its width. Text only ever becomes a text node, so a hostile name
// stays a name.

const SVG = "http://www.w3.org/2000/svg";

/** An event that bubbles from a figure or a verdict that has just been drawn: a page that was loading has something to show. */
export const DRAWN = "drawn";

/** @typedef {Node | string | number | null | undefined | false} Child */

/** @param {Element} node @param {Record<string, any>} props */
function applyProps(node, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** @param {Child} child @returns {child is Node | string} numbers are turned into text by the browser */
const isPresent = (child) => child !== null && child !== undefined && child !== false;

/**
 * An element; a function among the props listens to the event of that name.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Record<string, any>} [props] @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  applyProps(node, props);
  node.append(...children.filter(isPresent));
  return node;
}

/** @param {string} tag @param {Record<string, any>} [props] @param {...Child} children @returns {SVGElement} */
export function svg(tag, props = {}, ...children) {
  const node = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  applyProps(node, props);
  node.append(...children.filter(isPresent));
  return node;
}

/** @param {Element} node @param {...Child} children */
export function replace(node, ...children) {
  node.replaceChildren(...children.filter(isPresent));
}

/**
 * A link inside this site; a path that would lead anywhere else becomes plain text.
 * @param {string} path @param {Record<string, any>} props @param {...Child} children
 */
export function link(path, props, ...children) {
  const inside = path.startsWith("/") && !/^\/[/\\]/.test(path);
  return inside ? el("a", { href: path, ...props }, ...children) : el("span", {}, ...children);
}

// Tells when an element became wider or narrower.

/** A new width asks for new columns once it stays. Milliseconds. */
const SETTLE_MS = 250;

/** Calls back when the width, and not only the height, changed. @param {HTMLElement} element @param {() => void} changed */
export function watchWidth(element, changed) {
  let width = 0;
  const observer = new ResizeObserver(() => {
    const before = width;
    width = element.clientWidth;
    if (before && width && before !== width) changed();
  });
  observer.observe(element);
  return () => observer.disconnect();
}

/** Also, once the width stays, what its new width is to be filled with. @param {HTMLElement} element @param {() => void} changed at each change @param {() => void} settled */
export function settledWidth(element, changed, settled) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const stop = watchWidth(element, () => {
    changed();
    clearTimeout(timer);
    timer = setTimeout(settled, SETTLE_MS);
  });
  return () => {
    clearTimeout(timer);
    stop();
  };
}
