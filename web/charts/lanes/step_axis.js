// The one axis of steps of lanes that have none of their own: its labels, and the step that is pointed at.

import { el, replace, watchWidth } from "../../format/dom.js";
import { count } from "../../format/numbers.js";
import { frameOf, pixelOf, stepLabels } from "../frame.js";

export function createStepAxis() {
  const labels = el("div", {});
  const pointed = el("span", { class: "step-axis-pointed", hidden: true });
  const body = el("div", { class: "step-axis-body" }, labels, pointed);
  const element = el("div", { class: "step-axis", "aria-hidden": "true" }, body);
  /** @type {import("../../types.js").StepRange | null} */
  let range = null;
  watchWidth(body, draw); // goes with the element

  const frame = () => frameOf(body.clientWidth, 0, range ?? { start: 0, stop: 1 });

  function draw() {
    if (!range) return;
    const current = frame();
    replace(labels, el("span", { class: "step-axis-name" }, "step"), ...stepLabels(current).map(({ at, text }) => placed(el("span", {}, text), pixelOf(at, current))));
  }

  return {
    element,
    /** @param {import("../../types.js").StepRange} next */
    update(next) {
      range = next;
      draw();
    },
    /** @param {number | null} step */
    show(step) {
      pointed.hidden = step === null || !range || step < range.start || step >= range.stop;
      if (step === null || pointed.hidden) return;
      pointed.textContent = count(step);
      placed(pointed, pixelOf(step, frame()));
    },
  };
}

/** @param {HTMLElement} label @param {number} x */
function placed(label, x) {
  label.style.left = `${Math.round(x)}px`;
  return label;
}
