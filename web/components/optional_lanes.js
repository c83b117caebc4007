// Lanes for what not every run has: without anything to show they take no room, but keep their width.

import { el } from "../dom.js";

/** @typedef {import("./lane_specs.js").LaneSpec} LaneSpec */
/** @typedef {import("./lane_group.js").LaneEntry} LaneEntry */
/** @typedef {import("./lane.js").Lane} Lane */

/** Not display: none, as a lane asks for as many columns as it is wide. */
const ABSENT = "is-absent";

/**
 * A lane that is there while its figure has something; `keep` says that it is there though it has not.
 * @param {LaneSpec} spec @param {import("./lane.js").LaneOptions} [options] @param {(model: any) => boolean} [keep]
 */
export function optionalLane(spec, options = {}, keep = () => false) {
  /** @type {Lane | null} */
  let lane = null;
  const show = (/** @type {boolean} */ isThere) => void lane?.element.classList.toggle(ABSENT, !isThere);
  /** @type {LaneEntry} */
  const entry = {
    spec,
    options: {
      ...options,
      onModel(model) {
        options.onModel?.(model);
        show(!spec.isEmpty(model) || keep(model));
      },
    },
  };
  return {
    entry,
    /** Once the group has made it. @param {Lane} made @param {...import("../dom.js").Child} below */
    attach(made, ...below) {
      lane = made;
      made.element.append(...below.filter((child) => child instanceof Node));
      show(false);
    },
  };
}

/** A note at the foot of a lane. @param {string} testid */
export const laneNote = (testid) => el("p", { class: "lane-message", "data-testid": testid, hidden: true });
