// New content in place of old, where a part that stays the same stays the same node: focus and selection are kept.

import { keepRows } from "./keep_rows.js";

/** @param {Element} place whose content is these parts alone, each at its own place @param {...(HTMLElement | null)} parts */
export function renew(place, ...parts) {
  const shown = parts.flatMap((part, at) => {
    part?.setAttribute("data-key", String(at));
    return part ?? [];
  });
  keepRows(place, shown);
}
