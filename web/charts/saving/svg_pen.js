// An SVG writer with the methods of a canvas: the same drawing code makes both, and the file stays sharp at any size.
// Pure.

/** @typedef {{fillStyle: string, strokeStyle: string, lineWidth: number, globalAlpha: number, font: string, textAlign: string, textBaseline: string, dash: number[], clip: string, dx: number, dy: number}} PenState */
/** @typedef {{x: number, y: number, width: number, height: number, look: string}} Rectangle */

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
/** What XML 1.0 has no way to write, half a surrogate pair among it. */
const UNWRITABLE = /[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu;

/** @param {string} text */
export const xmlText = (text) => text.replace(UNWRITABLE, "\uFFFD").replace(/[&<>"]/g, (character) => ENTITIES[character]);

/** @param {number} value */
const short = (value) => String(Math.round(value * 100) / 100);

/** @type {Record<string, string>} */
const ANCHORS = { left: "start", start: "start", center: "middle", right: "end", end: "end" };

export class SvgPen {
  constructor() {
    /** @type {PenState[]} */
    this.stack = [];
    this.fillStyle = "#000";
    this.strokeStyle = "#000";
    this.lineWidth = 1;
    this.globalAlpha = 1;
    this.font = "11px sans-serif";
    this.textAlign = "start";
    this.textBaseline = "alphabetic";
    /** @type {number[]} */
    this.dash = [];
    this.clipId = "";
    this.dx = 0;
    this.dy = 0;
    this.path = "";
    /** @type {string[]} */
    this.parts = [];
    this.clips = 0;
    /** Not written yet: the next may only lengthen it. @type {Rectangle | null} */
    this.open = null;
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, dash, clipId: clip, dx, dy } = this;
    this.stack.push({ fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, dash, clip, dx, dy });
  }

  restore() {
    const state = this.stack.pop();
    if (!state) return;
    const { clip, ...rest } = state;
    Object.assign(this, rest);
    this.clipId = clip;
  }

  /** @param {number} x @param {number} y */
  translate(x, y) {
    this.dx += x;
    this.dy += y;
  }

  beginPath() {
    this.path = "";
  }

  /** @param {number} x @param {number} y */
  moveTo(x, y) {
    this.path += `M${short(x + this.dx)} ${short(y + this.dy)}`;
  }

  /** @param {number} x @param {number} y */
  lineTo(x, y) {
    this.path += `L${short(x + this.dx)} ${short(y + this.dy)}`;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  rect(x, y, width, height) {
    this.moveTo(x, y);
    this.path += `h${short(width)}v${short(height)}h${short(-width)}Z`;
  }

  clip() {
    this.clips += 1;
    this.clipId = `c${this.clips}`;
    this.add(`<clipPath id="${this.clipId}"><path d="${this.path}"/></clipPath>`);
  }

  stroke() {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.map(short).join(" ")}"` : "";
    const clip = this.clipId ? ` clip-path="url(#${this.clipId})"` : "";
    this.add(`<path d="${this.path}" fill="none" stroke="${xmlText(this.strokeStyle)}" stroke-width="${short(this.lineWidth)}"${dash}${clip}${this.alpha()}/>`);
  }

  /** @param {number[]} dash */
  setLineDash(dash) {
    this.dash = dash;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  fillRect(x, y, width, height) {
    const next = { x: x + this.dx, y: y + this.dy, width, height, look: `fill="${xmlText(this.fillStyle)}"${this.alpha()}` };
    const { open } = this;
    if (open && open.look === next.look && open.y === next.y && open.height === height && open.x + open.width === next.x) open.width += width;
    else {
      this.flush();
      this.open = next;
    }
  }

  /** @param {string} text @param {number} x @param {number} y */
  fillText(text, x, y) {
    if (!text) return;
    const baseline = this.textBaseline === "middle" ? ' dominant-baseline="central"' : "";
    const anchor = ANCHORS[this.textAlign] ?? "start";
    this.add(`<text x="${short(x + this.dx)}" y="${short(y + this.dy)}" fill="${xmlText(this.fillStyle)}" style="font:${xmlText(this.font)}" text-anchor="${anchor}"${baseline}${this.alpha()}>${xmlText(text)}</text>`);
  }

  alpha() {
    return this.globalAlpha === 1 ? "" : ` opacity="${short(this.globalAlpha)}"`;
  }

  flush() {
    if (!this.open) return;
    const { x, y, width, height, look } = this.open;
    this.open = null;
    this.parts.push(`<rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}" ${look}/>`);
  }

  /** @param {string} part */
  add(part) {
    this.flush();
    this.parts.push(part);
  }

  /** The whole file. @param {number} width @param {number} height @param {string} title @param {string} about */
  document(width, height, title, about) {
    this.flush();
    return svgDocument(width, height, title, about, this.parts.join("\n"));
  }
}

/** @param {number} width @param {number} height @param {string} title @param {string} about @param {string} body markup */
export const svgDocument = (width, height, title, about, body) =>
  `<svg xmlns="http://www.w3.org/2000/svg" width="${short(width)}" height="${short(height)}" viewBox="0 0 ${short(width)} ${short(height)}" role="img">\n${described(title, about)}\n${body}\n</svg>\n`;

/** @param {string} title @param {string} about */
const described = (title, about) => `<title>${xmlText(title)}</title>\n<desc>${xmlText(about)}</desc>`;

/** Plotly's SVG with a title of its own, for who hears it. @param {string} markup @param {string} title @param {string} about */
export function withTitle(markup, title, about) {
  return markup.replace(/^(\s*<svg\b[^>]*)>/, (_, head) => `${head} role="img">${described(title, about)}`);
}
