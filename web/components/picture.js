// A picture on a canvas in a panel: it follows width and theme, and reads out what is pointed at, by pointer or by arrows.

import { el } from "../dom.js";
import { fileName } from "../figure_files.js";
import { clip, steps } from "../format.js";
import { onTheme, palette } from "../theme.js";
import { watchWidth } from "../watch_width.js";
import { createFigureMenu } from "./figure_menu.js";
import { createFigureTable } from "./figure_table.js";
import { pictureFile } from "./picture_file.js";

/** @typedef {import("../cell_grid.js").Area} Area */
/** @typedef {{width: number, height: number}} Size */
/** @typedef {{text: string, file: string}} Whose run and range, in words and in a file's name */
/**
 * What one kind of picture knows. M: what is drawn; S: a place in it.
 * @template M, S
 * @typedef {object} PictureSpec
 * @property {string} name
 * @property {string} title
 * @property {(model: M, width: number) => number} height pixels
 * @property {(pen: CanvasRenderingContext2D, model: M, size: Size, palette: import("../theme.js").Palette) => void} paint
 * @property {(model: M, x: number, y: number, size: Size) => S | null} spotAt
 * @property {(model: M, spot: S | null, key: string) => S | null} moved by an arrow key; null for any other
 * @property {(model: M, spot: S) => boolean} has whether the place is still there in new data
 * @property {(model: M, spot: S, size: Size) => Area} boxOf
 * @property {(model: M, spot: S) => string} say
 * @property {(model: M, spot: S) => void} [pick] by a click or Enter
 * @property {string} [keys] what arrows and Enter do, for who cannot see the picture
 * @property {(model: M) => import("../csv.js").Rows} rows every value, for a file
 * @property {(model: M) => import("../figure_summary.js").Summary} summary the same as a table, bounded
 * @property {{height: number, paint: (pen: CanvasRenderingContext2D, palette: import("../theme.js").Palette) => void}} legend what its colours mean, for a file
 */

const NO_FILES = "The server has no file of collectives or links: these have every value that is shown.";

/** Whose picture it is, for its file. @param {import("../types.js").Run} run @param {import("../types.js").StepRange | null} range @returns {Whose} */
export function pictureOf(run, range) {
  const text = `run ${clip(run.title || run.name, 60)}${range ? ` · ${steps(range)}` : ""} · all ranks`;
  return { text, file: fileName("run", run.id, ...(range ? ["steps", range.start, range.stop - 1] : [])) };
}

/** Sharp on dense screens, bounded on very dense ones. */
const pixelRatio = () => Math.max(1, Math.min(2, window.devicePixelRatio || 1));

/**
 * @template M, S
 * @param {PictureSpec<M, S>} spec @param {...import("../dom.js").Child} foot under the picture, such as a legend
 */
export function createPicture(spec, ...foot) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const mark = el("div", { class: "picture-mark", hidden: true });
  const frame = el("div", { class: "picture", "data-testid": `picture-${spec.name}`, tabindex: 0, role: "group" }, canvas, mark);
  const readout = el("output", { class: "lane-readout" });
  const note = el("span", { class: "lane-note" });
  const heading = el("h2", {}, spec.title);
  const table = createFigureTable(() => spec.title, () => (model === null ? null : spec.summary(model)));
  const menu = createFigureMenu(
    {
      fileName: () => fileName(of.file, spec.name),
      picture: (format) => pictureFile(format, spec, model, frame.clientWidth, [of.text, note.textContent].filter(Boolean).join(" · ")),
      rows: () => (model === null ? null : spec.rows(model)),
      files: () => [],
      noFiles: NO_FILES,
    },
    table,
    heading,
  );
  const element = el("section", { class: "panel lane" }, el("header", {}, heading, note, readout, menu.element), frame, ...foot, table.element);
  const stops = [onTheme(paint), watchWidth(frame, paint), menu.destroy];
  /** @type {Whose} */
  let of = { text: "", file: "" };
  /** @type {M | null} */
  let model = null;
  /** @type {S | null} */
  let spot = null;
  let size = { width: 0, height: 0 };
  /** Whether the place was pointed at, rather than walked to: a page that moves under a resting pointer takes only that. */
  let isPointed = false;

  function paint() {
    if (model === null || !frame.clientWidth) return;
    size = { width: frame.clientWidth, height: spec.height(model, frame.clientWidth) };
    const ratio = pixelRatio();
    canvas.width = Math.round(size.width * ratio);
    canvas.height = Math.round(size.height * ratio);
    canvas.style.height = `${size.height}px`;
    const pen = canvas.getContext("2d");
    if (!pen) throw new Error("this browser gives no 2-D canvas");
    pen.scale(ratio, ratio);
    spec.paint(pen, model, size, palette());
    frame.dataset.ready = String(Number(frame.dataset.ready ?? 0) + 1);
    point(spot);
  }

  /** @param {S | null} next */
  function point(next) {
    spot = next;
    mark.hidden = next === null;
    readout.textContent = next === null || model === null ? "" : spec.say(model, next);
    if (next === null || model === null) return;
    const box = spec.boxOf(model, next, size);
    mark.style.transform = `translate(${box.left}px, ${box.top}px)`;
    mark.style.width = `${box.width}px`;
    mark.style.height = `${box.height}px`;
  }

  /** @param {MouseEvent} event */
  function under(event) {
    const box = frame.getBoundingClientRect();
    return model === null ? null : spec.spotAt(model, event.clientX - box.left, event.clientY - box.top, size);
  }

  /** @param {S} next */
  function walkTo(next) {
    isPointed = false;
    point(next);
  }

  /** @param {PointerEvent} event */
  function move(event) {
    if (!isPointed && spot !== null && event.movementX === 0 && event.movementY === 0) return;
    isPointed = true;
    point(under(event));
  }

  /** @param {KeyboardEvent} event */
  function key(event) {
    if (model === null || event.altKey || event.metaKey || event.ctrlKey) return;
    const next = spec.moved(model, spot, event.key);
    if (next !== null) walkTo(next);
    else if (event.key === "Escape") point(null);
    else if (event.key === "Enter" && spot !== null) spec.pick?.(model, spot);
    else return;
    event.preventDefault();
  }

  frame.addEventListener("pointermove", move);
  frame.addEventListener("pointerleave", () => isPointed && point(null));
  frame.addEventListener("blur", () => point(null));
  frame.addEventListener("keydown", key);
  frame.addEventListener("click", (event) => {
    const at = under(event);
    if (model !== null && at !== null) spec.pick?.(model, at);
  });
  if (spec.pick) frame.classList.add("is-picked");

  return {
    element,
    /** @param {M} next @param {string} summary one line for who cannot see it @param {string} [text] beside the title @param {Whose} [whose] */
    update(next, summary, text = "", whose = of) {
      model = next;
      of = whose;
      if (spot !== null && !spec.has(next, spot)) spot = null; // else a reader goes on reading where they are
      note.textContent = text;
      frame.setAttribute("aria-label", `${spec.title}. ${summary} ${spec.keys ?? "Arrow keys read out the values."}`);
      menu.update(true);
      table.update();
      paint();
    },
    paint,
    destroy() {
      stops.forEach((stop) => stop());
    },
  };
}
