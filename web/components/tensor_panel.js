// The panel beside the layers: opens for the tensor in the URL, closes with Escape or its button, and gives the focus back.

import { el, replace } from "../dom.js";
import { createTensorList } from "../tensor_list.js";
import { createTensorBody, panelHead } from "./tensor_panel_body.js";

/** @typedef {import("../types.js").PageContext} PageContext */
/** @typedef {import("../types.js").Run} Run */
/** @typedef {import("../types.js").Tensor} Tensor */

/** Below this the panel lies under the picture, as in layers.css. Pixels. */
const BESIDE = 1100;

/**
 * @param {PageContext} ctx @param {() => void} refetch
 * @param {HTMLElement} aside holds it; hidden while no tensor is chosen
 */
export function createTensorPanel(ctx, refetch, aside) {
  /** @type {ReturnType<typeof createTensorBody> | null} */
  let open = null;
  /** @type {number | null} */
  let shown = null;
  let isFirst = true;
  /** What had the focus before. @type {Element | null} */
  let before = null;
  const list = createTensorList(ctx.params.id);

  function shut() {
    open?.destroy();
    open = null;
    shown = null;
    aside.hidden = true;
    replace(aside);
  }

  function close() {
    const back = before?.isConnected ? before : document.querySelector("[data-testid='figure-layers']");
    shut();
    ctx.setState({ tensor: null });
    if (back instanceof HTMLElement) back.focus();
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    const isInside = event.target instanceof Node && aside.contains(event.target);
    if (event.key !== "Escape" || aside.hidden || document.querySelector("dialog[open]")) return;
    if (!isInside && (event.defaultPrevented || (event.target instanceof HTMLElement && event.target.matches("input, select, textarea")))) return;
    event.preventDefault();
    close();
  }

  /** @param {Tensor} tensor */
  function show(tensor) {
    const isChosenNow = !isFirst; // by the reader, and not by the address the page came with
    if (isChosenNow && !aside.contains(document.activeElement)) before = document.activeElement;
    open?.destroy();
    open = createTensorBody(ctx, refetch, tensor, close);
    shown = tensor.tensor;
    aside.hidden = false;
    replace(aside, open.element);
    if (isChosenNow) open.heading.focus({ preventScroll: window.innerWidth > BESIDE }); // below the picture it would not be seen
  }

  /** The tensor of that number; without one nothing opens. @param {number} number @param {AbortSignal} signal */
  async function found(number, signal) {
    aside.hidden = false; // its place before its content, so that the picture is not drawn in another width first
    try {
      return (await list(number, signal)).find((one) => one.tensor === number);
    } catch (error) {
      if (!signal.aborted && open === null) shut();
      throw error;
    }
  }

  document.addEventListener("keydown", key);
  return {
    /** @param {Run} run @param {AbortSignal} signal */
    async update(run, signal) {
      const number = ctx.state.tensor;
      if (number === null) shut();
      else {
        const tensor = await found(number, signal);
        if (signal.aborted || number !== ctx.state.tensor) return;
        if (!tensor) missing(aside);
        else if (shown !== number) show(tensor);
        await open?.update(run, signal);
      }
      isFirst = false;
    },
    destroy() {
      document.removeEventListener("keydown", key);
      open?.destroy();
    },
  };

  /** @param {HTMLElement} where */
  function missing(where) {
    shut();
    where.hidden = false;
    replace(where, el("section", { class: "panel tensor-panel" }, panelHead("No such tensor", close).element, el("p", {}, "This run has none of that number.")));
  }
}
