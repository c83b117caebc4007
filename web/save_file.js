// Hands a file to the browser, as if it had been downloaded.

import { el } from "./dom.js";

/** A browser may begin to read only later. Milliseconds. */
const KEPT_MS = 60_000;

/** @param {Blob} content @param {string} name */
export function saveFile(content, name) {
  const address = URL.createObjectURL(content);
  // The page follows the clicks on its own links, and would take this for one of them.
  const anchor = el("a", { href: address, download: name, hidden: true, click: (/** @type {Event} */ event) => event.stopPropagation() });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(address), KEPT_MS);
}

/** What a data URL holds, as text. @param {string} url */
export function dataText(url) {
  const [head, body] = parts(url);
  return head.endsWith(";base64") ? new TextDecoder().decode(bytes(body)) : decodeURIComponent(body);
}

/** @param {string} url of base64 */
export const dataBytes = (url) => bytes(parts(url)[1]);

/** @param {string} url @returns {[string, string]} */
function parts(url) {
  const comma = url.indexOf(",");
  return [url.slice(0, comma), url.slice(comma + 1)];
}

/** @param {string} base64 */
const bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
