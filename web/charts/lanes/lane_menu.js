// How one lane is shown, as the address has it: pinned, moved, enlarged, smoothed, on a logarithmic axis.

import { laneFlags, pinnedLanes, withLaneFlag, withPinned } from "../../api/url_state.js";
import { createMenu, menuChoice } from "../saving/menu.js";

/** @typedef {import("../../api/url_state.js").LaneFlag} LaneFlag */

const NAME = "View of this lane";

/**
 * @param {import("../../types.js").PageContext} ctx @param {import("./lane_specs.js").LaneSpec} spec
 * @param {() => string[]} order names of all lanes that are shown now, from the top
 * @returns {(heading: HTMLElement) => ReturnType<typeof createMenu> & {destroy: () => void}}
 */
export const createLaneMenu = (ctx, spec, order) => (heading) => {
  const { name } = spec;
  const menu = createMenu({ text: "View", name: NAME, kind: "view", of: heading }, items);

  function items() {
    const { lanes } = ctx.state;
    const flags = laneFlags(lanes, name);
    const change = (/** @type {string[]} */ next) => {
      ctx.setState({ lanes: next }, { replace: true });
      menu.finish();
    };
    const flag = (/** @type {LaneFlag} */ one, /** @type {string} */ text) => menuChoice(text, () => change(withLaneFlag(lanes, name, one)), flags.has(one));
    const names = order();
    const at = names.indexOf(name);
    return [
      spec.hasStyles ? flag("log", "Logarithmic axis") : null,
      spec.hasStyles ? flag("smooth", "Smooth") : null,
      flag("max", "Maximise"),
      flags.has("pin") ? flag("pin", "Pin to the top") : menuChoice("Pin to the top", () => change(withPinned(lanes, [...pinnedLanes(lanes), name])), false),
      at > 0 ? menuChoice("Move up", () => change(withPinned(lanes, moved(names, at, -1, pinnedLanes(lanes).length)))) : null,
      at >= 0 && at < names.length - 1 ? menuChoice("Move down", () => change(withPinned(lanes, moved(names, at, 1, pinnedLanes(lanes).length)))) : null,
    ];
  }

  return { ...menu, destroy: menu.close };
};

/** The lanes to pin so that one is a place higher or lower: all down to the lower of the two. @param {readonly string[]} names @param {number} at @param {-1 | 1} by @param {number} pinned how many are */
export function moved(names, at, by, pinned) {
  const next = [...names];
  [next[at], next[at + by]] = [next[at + by], next[at]];
  return next.slice(0, Math.max(pinned, Math.max(at, at + by) + 1));
}
