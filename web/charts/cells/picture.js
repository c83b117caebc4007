// A picture on a canvas in a panel, with pointer and keys, and as a PNG file.

import { el, watchWidth } from "../../format/dom.js";
import { clip, steps } from "../../format/numbers.js";
import { FONT } from "../drawing.js";
import { createFigurePanel } from "../saving/figure_menu.js";
import { fileName } from "../saving/files.js";
import { LEAST_WIDTH } from "../saving/lane_files.js";
import { onTheme, palette } from "../theme.js";
import { canvasOf, penOf, pixelRatio } from "./patterns.js";

/** @typedef {import("./cell_grid.js").Area} Area */
/** @typedef {{width: number, height: number}} Size */
/** @typedef {{text: string, file: string}} Whose run and range, as text and in a file's name */
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
 * @property {(model: M, spot: S) => string} readout
 * @property {(model: M, spot: S) => void} [pick] by a click or Enter
 * @property {string} [keys] what arrows and Enter do, for who cannot see the picture
 * @property {(model: M) => import("../saving/files.js").Rows} rows every value, for a file
 * @property {(model: M) => import("../saving/rows.js").Summary} summary the same as a table, bounded
 * @property {{height: number, paint: (pen: CanvasRenderingContext2D, palette: import("../theme.js").Palette) => void}} legend what its colours mean, for a file
 */

const NO_FILES = "The server has no file of collectives or links: these have every value that is shown.";

/** Whose picture it is, for its file. @param {import("../../types.js").Run} run @param {import("../../types.js").StepRange | null} range @returns {Whose} */
export function pictureOf(run, range) {
  const text = `run ${clip(run.title || run.name, 60)}${range ? ` · ${steps(range)}` : ""} · all ranks`;
  return { text, file: fileName("run", run.id, ...(range ? ["steps", range.start, range.stop - 1] : [])) };
}

/**
 * @template M, S
 * @param {PictureSpec<M, S>} spec @param {...import("../../format/dom.js").Child} foot under the picture, such as a legend
 */
export function createPicture(spec, ...foot) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const mark = el("div", { class: "picture-mark", hidden: true });
  const frame = el("div", { class: "picture", "data-testid": `picture-${spec.name}`, tabindex: 0, role: "group" }, canvas, mark);
  const panel = createFigurePanel(
    spec.title,
    {
      fileName: () => fileName(of.file, spec.name),
      picture: () => pictureFile(spec, model, frame.clientWidth, [of.text, panel.note.textContent].filter(Boolean).join(" · ")),
      rows: () => (model === null ? null : spec.rows(model)),
      files: () => [],
      noFiles: NO_FILES,
    },
    () => (model === null ? null : spec.summary(model)),
  );
  panel.fill(frame, ...foot);
  const stops = [onTheme(paint), watchWidth(frame, paint), panel.destroy];
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
    const pen = penOf(canvas);
    pen.scale(ratio, ratio);
    spec.paint(pen, model, size, palette());
    frame.dataset.ready = String(Number(frame.dataset.ready ?? 0) + 1);
    point(spot);
  }

  /** @param {S | null} next */
  function point(next) {
    spot = next;
    mark.hidden = next === null;
    panel.readout.textContent = next === null || model === null ? "" : spec.readout(model, next);
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
    element: panel.element,
    /** @param {M} next @param {string} summary one line for who cannot see it @param {string} [text] beside the title @param {Whose} [whose] */
    update(next, summary, text = "", whose = of) {
      model = next;
      of = whose;
      if (spot !== null && !spec.has(next, spot)) spot = null; // else a reader goes on reading where they are
      panel.note.textContent = text;
      frame.setAttribute("aria-label", `${spec.title}. ${summary} ${spec.keys ?? "Arrow keys read out the values."}`);
      panel.update(true);
      paint();
    },
    paint,
    /** As much room as it will take, before it is drawn. @param {(width: number) => number} height */
    reserve(height) {
      if (model === null) canvas.style.height = `${height(frame.clientWidth)}px`;
    },
    destroy() {
      stops.forEach((stop) => stop());
    },
  };
}

// A picture of a canvas as a file that is read alone: with its title, whose it is, and its legend.

/** @typedef {import("../theme.js").Palette} Palette */
/** @template M @typedef {Pick<PictureSpec<M, any>, "title" | "height" | "paint" | "legend">} Painter */

/** Pixels for the title; letters in it and in the line under it, to a pixel; pixels of a saved one to one of the screen. */
const HEAD = 48;
const LETTERS = 1 / 6;
const SHARP = 2;

/**
 * @template M
 * @param {Painter<M>} spec @param {M | null} model @param {number} shownWidth @param {string} about
 * @returns {Promise<Blob>}
 */
async function pictureFile(spec, model, shownWidth, about) {
  if (model === null) throw new Error("nothing is drawn yet");
  const width = Math.max(LEAST_WIDTH, shownWidth);
  const size = { width, height: spec.height(model, width) };
  const whole = { width, height: HEAD + size.height + spec.legend.height };
  return pngOf(pictureOn(whole, (pen) => paintAll(pen, spec, model, size, whole, about, palette())));
}

/**
 * @template M
 * @param {CanvasRenderingContext2D} pen @param {Painter<M>} spec @param {M} model @param {Size} size @param {Size} whole @param {string} about @param {Palette} colours
 */
function paintAll(pen, spec, model, size, whole, about, colours) {
  pen.fillStyle = colours.panel;
  pen.fillRect(0, 0, whole.width, whole.height);
  paintHead(pen, spec.title, about, whole.width, colours);
  pen.translate(0, HEAD);
  spec.paint(pen, model, size, colours);
  pen.translate(0, size.height);
  spec.legend.paint(pen, colours);
}

/** @param {CanvasRenderingContext2D} pen @param {string} title @param {string} about @param {number} width @param {Palette} colours */
function paintHead(pen, title, about, width, colours) {
  const room = Math.floor((width - 24) * LETTERS);
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.font = `bold 14px ${FONT}`;
  pen.fillStyle = colours.ink;
  pen.fillText(title, 12, 16);
  pen.font = `11px ${FONT}`;
  pen.fillStyle = colours.muted;
  pen.fillText(about.length > room ? `${about.slice(0, room - 1)}…` : about, 12, 35);
}

/** @param {Size} whole @param {(pen: CanvasRenderingContext2D) => void} paint */
function pictureOn({ width, height }, paint) {
  const { canvas, pen } = canvasOf(width * SHARP, height * SHARP);
  pen.scale(SHARP, SHARP);
  paint(pen);
  return canvas;
}

/** @param {HTMLCanvasElement} canvas @returns {Promise<Blob>} */
const pngOf = (canvas) => new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("the picture is too large for this browser"))), "image/png"));
