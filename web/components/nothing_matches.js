// What to change when no layer is left to show, each with a button that changes it.

import { el, replace } from "../dom.js";
import { clip } from "../format.js";

/** @param {import("../types.js").PageContext} ctx */
export function createNothingMatches(ctx) {
  const element = el("section", { class: "panel layers-nothing", "data-testid": "nothing-matches", hidden: true });
  /** @param {string} text @param {Partial<import("../types.js").ViewState>} patch */
  const button = (text, patch) => el("button", { type: "button", click: () => ctx.setState(patch) }, text);
  return {
    element,
    /** @param {boolean} isEmpty */
    update(isEmpty) {
      element.hidden = !isEmpty;
      if (!isEmpty) return;
      const { q, kinds, start, stop, last, tensor, axes, step } = ctx.state;
      const asked = [q && `the name filter “${clip(q, 60)}”`, kinds.length > 0 && `the kinds ${kinds.join(", ")}`, isRange(start, stop, last) && "the steps shown"].filter(Boolean);
      const text = asked.length ? `Nothing is there for ${asked.join(", ")}. To see more, change one of them:` : "No layer was observed in these steps.";
      const changes = [
        q && button("Clear the name filter", { q: "" }),
        kinds.length > 0 && button("All kinds", { kinds: [] }),
        isRange(start, stop, last) && button("All steps", { start: null, stop: null }),
        axes === "tensor,rank" && step !== null && button("All steps shown", { step: null }),
        axes === "step,rank" && tensor !== null && button("All layers", { tensor: null }),
      ];
      replace(element, el("p", {}, text), el("div", {}, ...changes));
    },
  };
}

/** @param {number | null} start @param {number | null} stop @param {number | null | undefined} last */
const isRange = (start, stop, last) => start !== null || stop !== null || (last ?? null) !== null;
