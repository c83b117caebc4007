// A picture of a canvas as a file that is read alone: with its title, whose it is, and its legend.

import { FONT } from "../figure_drawing.js";
import { LEAST_WIDTH } from "../figure_picture.js";
import { SvgPen, svgDocument } from "../svg_pen.js";
import { palette } from "../theme.js";

/** @typedef {import("../theme.js").Palette} Palette */
/** @template M @typedef {Pick<import("./picture.js").PictureSpec<M, any>, "title" | "height" | "paint" | "legend">} Painter */
/** @typedef {{width: number, height: number}} Size */

/** Pixels for the title; letters in it and in the line under it, to a pixel; pixels of a saved one to one of the screen. */
const HEAD = 48;
const LETTERS = 1 / 6;
const SHARP = 2;
/** With more parts than this a vector picture is slower to open than it is worth: its cells are then pixels. */
const MOST_PARTS = 30_000;

/**
 * @template M
 * @param {"png" | "svg"} format @param {Painter<M>} spec @param {M | null} model @param {number} shownWidth @param {string} about
 * @returns {Promise<Blob>}
 */
export async function pictureFile(format, spec, model, shownWidth, about) {
  if (model === null) throw new Error("nothing is drawn yet");
  const width = Math.max(LEAST_WIDTH, shownWidth);
  const size = { width, height: spec.height(model, width) };
  const whole = { width, height: HEAD + size.height + spec.legend.height };
  const paint = (/** @type {any} */ pen) => paintAll(pen, spec, model, size, whole, about, palette());
  return format === "png" ? pngOf(canvasOf(whole, paint)) : svgOf(whole, paint, spec.title, about);
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
function canvasOf(whole, paint) {
  const canvas = document.createElement("canvas");
  canvas.width = whole.width * SHARP;
  canvas.height = whole.height * SHARP;
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("this browser gives no 2-D canvas");
  pen.scale(SHARP, SHARP);
  paint(pen);
  return canvas;
}

/** @param {HTMLCanvasElement} canvas @returns {Promise<Blob>} */
const pngOf = (canvas) => new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("the picture is too large for this browser"))), "image/png"));

/** @param {Size} whole @param {(pen: any) => void} paint @param {string} title @param {string} about */
function svgOf(whole, paint, title, about) {
  const pen = new SvgPen();
  paint(pen);
  const isLarge = pen.parts.length > MOST_PARTS;
  const text = isLarge ? svgDocument(whole.width, whole.height, title, about, embedded(whole, paint)) : pen.document(whole.width, whole.height, title, about);
  return new Blob([text], { type: "image/svg+xml" });
}

/** @param {Size} whole @param {(pen: any) => void} paint */
const embedded = (whole, paint) => `<image width="${whole.width}" height="${whole.height}" href="${canvasOf(whole, paint).toDataURL()}"/>`;
