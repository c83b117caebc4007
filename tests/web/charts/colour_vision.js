// Colours as numbers: contrast (WCAG 2.2), difference (CIEDE2000), and what is left of them without one of the cones.

import { readFileSync } from "node:fs";

import { SCALES } from "../../../web/charts/colours.js";

/** @typedef {[number, number, number]} Triple */

/** @param {string} hex @returns {Triple} linear sRGB, 0 to 1 */
export function linear(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return [r, g, b];
}

/** @param {number[][]} matrix @param {Triple} v @returns {Triple} */
function times(matrix, v) {
  const [x, y, z] = matrix.map((row) => row[0] * v[0] + row[1] * v[1] + row[2] * v[2]);
  return [x, y, z];
}

/**
 * Dichromacy on linear RGB: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A Physiologically-based Model for
 * Simulation of Color Vision Deficiency", IEEE TVCG 15 (6), 2009; their matrices of severity 1.0.
 * @type {Record<string, number[][]>}
 */
export const VISION = {
  usual: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

/** CIE L*a*b*, D65. @param {string} hex @param {number[][]} vision @returns {Triple} */
export function lab(hex, vision) {
  const seen = /** @type {Triple} */ (times(vision, linear(hex)).map((v) => Math.min(1, Math.max(0, v))));
  const xyz = times([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]], seen);
  const [x, y, z] = [xyz[0] / 0.95047, xyz[1], xyz[2] / 1.08883].map((t) => (t > 216 / 24389 ? Math.cbrt(t) : (t * 24389) / 27 / 116 + 16 / 116));
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

const DEGREE = Math.PI / 180;

/** @param {number} a @param {number} b degrees, 0 to 360 */
const hue = (a, b) => (a === 0 && b === 0 ? 0 : (Math.atan2(b, a) / DEGREE + 360) % 360);

/** CIEDE2000, after Sharma, Wu and Dalal (2005). @param {Triple} one @param {Triple} other */
export function difference([l1, a1, b1], [l2, a2, b2]) {
  const mean = (Math.hypot(a1, b1) + Math.hypot(a2, b2)) / 2;
  const g = 0.5 * (1 - Math.sqrt(mean ** 7 / (mean ** 7 + 25 ** 7)));
  const [x1, x2] = [a1 * (1 + g), a2 * (1 + g)];
  const [c1, c2] = [Math.hypot(x1, b1), Math.hypot(x2, b2)];
  const [h1, h2] = [hue(x1, b1), hue(x2, b2)];
  const apart = Math.abs(h1 - h2);
  const turn = c1 * c2 === 0 ? 0 : apart <= 180 ? h2 - h1 : h2 - h1 + (h2 <= h1 ? 360 : -360);
  const dh = 2 * Math.sqrt(c1 * c2) * Math.sin((turn / 2) * DEGREE);
  const [l, c] = [(l1 + l2) / 2, (c1 + c2) / 2];
  const h = c1 * c2 === 0 ? h1 + h2 : apart <= 180 ? (h1 + h2) / 2 : (h1 + h2 + (h1 + h2 < 360 ? 360 : -360)) / 2;
  const cos = (/** @type {number} */ degrees) => Math.cos(degrees * DEGREE);
  const t = 1 - 0.17 * cos(h - 30) + 0.24 * cos(2 * h) + 0.32 * cos(3 * h + 6) - 0.2 * cos(4 * h - 63);
  const sl = 1 + (0.015 * (l - 50) ** 2) / Math.sqrt(20 + (l - 50) ** 2);
  const [sc, sh] = [1 + 0.045 * c, 1 + 0.015 * c * t];
  const rt = -2 * Math.sqrt(c ** 7 / (c ** 7 + 25 ** 7)) * Math.sin(60 * Math.exp(-(((h - 275) / 25) ** 2)) * DEGREE);
  const [dl, dc] = [(l2 - l1) / sl, (c2 - c1) / sc];
  return Math.sqrt(dl ** 2 + dc ** 2 + (dh / sh) ** 2 + rt * dc * (dh / sh));
}

/** @param {string} hex */
export function luminance(hex) {
  const [r, g, b] = linear(hex);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** WCAG 2.2's contrast ratio, 1 to 21. @param {string} one @param {string} other */
export function contrast(one, other) {
  const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}

export const THEMES = /** @type {const} */ (["light", "dark"]);

/** The colours of style.css by name, of one theme, and those of the headroom scale as h0 to h6. @param {"light" | "dark"} theme @returns {Record<string, string>} */
export function tokens(theme) {
  const css = readFileSync(new URL("../../../web/styles/style.css", import.meta.url), "utf8");
  const declarations = css.matchAll(/--([\w-]+): (light-dark\(#[0-9a-f]{6}, #[0-9a-f]{6}\))/g);
  const hex = (/** @type {string} */ colour) => colour.match(/#[0-9a-f]{6}/g)?.[theme === "light" ? 0 : 1] ?? "";
  const named = Object.fromEntries(Array.from(declarations, ([, name, colour]) => [name, hex(colour)]));
  const headroom = SCALES.headroom.map(([, colour], i) => [`h${i}`, hex(colour) || named[colour.slice("var(--".length, -1)]]);
  return { ...named, ...Object.fromEntries(headroom) };
}
