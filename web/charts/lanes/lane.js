// One chart on a page: heading, read-out, plot, cursor line, menu and table. It fetches, draws, and reports pointers.

import * as api from "../../api/client.js";
import { ApiError } from "../../api/fetch.js";
import { DRAWN, el, replace } from "../../format/dom.js";
import { paintHeatmap } from "../cells/heatmap_canvas.js";
import { STEPS, frameOf, isNarrow, pixelOf } from "../frame.js";
import { draw, load as library, purge } from "../plotly.js";
import { createFigurePanel } from "../saving/figure_menu.js";
import { laneFigure } from "../saving/lane_files.js";
import { summaryOf } from "../saving/rows.js";
import { palette } from "../theme.js";
import { isOn, watchPointer } from "./lane_pointer.js";
import { describe } from "./lane_specs.js";

/** @typedef {import("./lane_pointer.js").Spot} Spot */
/** @typedef {{isLog?: boolean, isSmooth?: boolean}} LaneStyle */
/** @typedef {{run: import("../../types.js").Run, state: import("../../types.js").ViewState, range: import("../../types.js").StepRange}} View */
/**
 * @typedef {object} LaneOptions
 * @property {(view: View) => api.Query} [query] what to ask for besides range and size
 * @property {number} [maxHeight] pixels of plot at most; also bounds the rows asked for
 * @property {number} [left] pixels of left margin, for a figure that is alone on its page
 * @property {(rows: number) => number} [height] pixels of plot, in place of the kind's own
 * @property {boolean} [isCompact] without an axis of steps and without a border: the group has one axis for all, and the title stands beside the plot
 * @property {boolean} [isTitleAbove] of a compact lane whose names need all the room beside the plot
 * @property {(heading: HTMLElement) => {element: HTMLElement, destroy: () => void}} [menu] how it is shown, beside the menu that saves it
 * @property {() => LaneStyle} [style] how lines are drawn
 * @property {(view: View) => string} [title]
 * @property {(model: any) => void} [onModel] after new data
 * @property {() => void} [onFailed] after a failure, which leaves nothing to show
 * @property {(view: View, columns: number, signal: AbortSignal) => Promise<any>} [load] the model, where that is not one figure of the server's
 */
/**
 * @typedef {object} LaneHandlers
 * @property {(lane: Lane, spot: Spot | null) => void} hover
 * @property {(lane: Lane, spot: Spot) => void} pick
 * @property {(lane: Lane, row: number) => void} pickLabel
 * @property {(low: number, high: number) => void} zoom
 * @property {() => void} reset
 */

/** The server sends no more. */
const MOST_COLUMNS = 2000;
const MOST_ROWS = 1000;
/** A row thinner than this could not be distinguished from its neighbour. Pixels. */
const LEAST_ROW = 2;

export class Lane {
  /** @param {import("./lane_specs.js").LaneSpec} spec @param {LaneOptions} options @param {LaneHandlers} handlers */
  constructor(spec, options, handlers) {
    this.spec = spec;
    this.options = options;
    /** @type {any} */
    this.model = null;
    /** @type {import("../frame.js").Frame | null} */
    this.frame = null;
    /** @type {View | null} */
    this.view = null;
    /** A part of an axis that is not the page's. @type {import("../../types.js").StepRange | null} */
    this.zoomed = null;
    this.version = 0;
    this.gone = false;
    /** A drawing came while the reader was dragging. */
    this.postponed = false;
    this.plot = el("div", { class: "plot", "data-testid": `figure-${this.spec.name}`, tabindex: 0, role: "group", "aria-label": this.spec.title });
    this.cursor = el("div", { class: "lane-cursor", hidden: true });
    /** Where the cursor stands. @type {number | null} */
    this.step = null;
    this.panel = createFigurePanel(this.spec.title, laneFigure(this), () => this.model && summaryOf(this.model, this.spec.name, this.axis(), this.view?.run.series));
    const { element, heading, note, readout } = this.panel;
    this.element = element;
    this.heading = heading;
    this.note = note;
    this.readout = readout;
    this.menu = options.menu?.(this.heading) ?? null;
    if (this.menu) this.panel.header.append(this.menu.element);
    element.classList.toggle("is-compact", Boolean(options.isCompact));
    element.classList.toggle("is-title-above", Boolean(options.isTitleAbove));
    this.hairlines = createHairlines();
    /** The steps of the incident, under the lines and beside the cells. */
    this.shade = el("div", { class: "lane-incident", "data-cells": Boolean(spec.cells), "aria-hidden": "true", hidden: true });
    /** @type {import("../../types.js").StepRange | null} */
    this.incident = null;
    /** The cells of a heatmap, under what Plotly draws of it. */
    this.cells = el("canvas", { class: "lane-cells", "aria-hidden": "true", hidden: true });
    /** Of the plot with its margins, in pixels, when it was last looked at: looking makes the browser lay out the page. */
    this.width = 0;
    /** Where the marks above the lanes stand. @type {readonly number[]} */
    this.marks = [];
    this.pointer = watchPointer(this.plot, {
      surface: () => this.surface(),
      hover: (spot) => handlers.hover(this, spot),
      pick: (spot) => handlers.pick(this, spot),
      pickLabel: (row) => handlers.pickLabel(this, row),
      zoom: handlers.zoom,
      reset: handlers.reset,
      released: () => this.postponed && void this.render(),
    });
    this.wrap = el("div", { class: "plot-wrap" }, this.shade, this.cells, this.plot, this.pointer.element, this.hairlines.element, this.cursor);
    this.plot.style.height = `${this.frameFor(this.plotHeight(1), { start: 0, stop: 1 }).height}px`;
    this.message = el("p", { class: "lane-message", hidden: true });
    this.panel.fill(this.wrap, this.message, this.spec.legend?.());
    library().catch(() => {}); // it takes a quarter of a second to run, so the sooner it is there; `update` reports what fails
  }

  /** What the places along it are. @returns {import("../frame.js").FigureAxis} */
  axis() {
    return STEPS;
  }

  /** @param {number} rows */
  plotHeight(rows) {
    return this.options.height?.(rows) ?? Math.min(this.spec.plotHeight(rows), this.options.maxHeight ?? Infinity);
  }

  /** @param {number} plotHeight @param {import("../../types.js").StepRange} range */
  frameFor(plotHeight, range) {
    return frameOf(this.width, plotHeight, range, this.options.left, this.options.isCompact);
  }

  surface() {
    return this.frame && this.model ? { frame: this.frame, rows: this.rows().length, stride: this.model.dx ?? this.model.meta.steps_per_column } : null;
  }

  /** @returns {import("../../types.js").HeatmapRow[]} */
  rows() {
    return this.model?.rows ?? [];
  }

  measure() {
    this.width = this.wrap.clientWidth;
  }

  /** How much detail fits. @param {View} view */
  size(view) {
    this.measure();
    const { plotWidth } = this.frameFor(0, view.range);
    const rows = Math.floor(this.plotHeight(Infinity) / LEAST_ROW);
    return { columns: Math.min(MOST_COLUMNS, plotWidth), rows: Math.min(MOST_ROWS, rows) };
  }

  /** @param {View} view @param {AbortSignal} signal */
  async update(view, signal) {
    const { start, stop } = view.range;
    const query = { ...this.options.query?.(view), start, stop, ...this.size(view) };
    try {
      const { load } = this.options;
      const asked = load ? load(view, query.columns, signal) : api.figure(String(view.run.id), this.spec.name, query, signal);
      const [answer] = await Promise.all([asked, library()]);
      signal.throwIfAborted(); // the library may come after the answer, and the reader have gone on
      this.model = load ? answer : this.spec.read?.(answer);
      this.view = view;
      const damage = damageNote(this.model.meta);
      this.note.textContent = [this.model.meta.note, damage].filter(Boolean).join("; ");
      this.note.toggleAttribute("data-damaged", damage !== "");
      this.options.onModel?.(this.model);
      await this.redraw();
    } catch (error) {
      if (signal.aborted || isPageWide(error)) throw error;
      this.drop();
      this.showMessage(error instanceof Error ? error.message : String(error));
    }
  }

  /** What was shown is of another view: nothing may save it or read it out. */
  drop() {
    this.model = null;
    this.pointer.giveUp();
    this.clear();
    this.step = null;
    this.cursor.hidden = true;
    this.readout.textContent = "";
    this.note.textContent = "";
    this.panel.update(false);
    this.options.onFailed?.();
  }

  /** Draw what was last received, as wide as there is room now. */
  render() {
    this.measure();
    return this.redraw();
  }

  /** A drag under way is not disturbed. */
  async redraw() {
    this.postponed = this.pointer.isDown();
    if (!this.model || !this.view || this.gone || this.postponed) return;
    const empty = this.spec.isEmpty(this.model);
    this.showMessage(empty ? this.spec.empty : "");
    this.heading.textContent = this.options.title?.(this.view) ?? this.spec.title;
    const range = this.zoomed ?? this.spec.axis?.(this.model) ?? this.view.range;
    this.plot.setAttribute("aria-label", this.label(range));
    this.panel.update(!empty);
    if (empty) this.clear();
    else {
      const colours = palette();
      this.frame = this.frameFor(this.plotHeight(this.rows().length), range);
      if (this.options.isCompact) this.placeTitle(this.frame);
      this.plot.style.height = `${this.frame.height}px`;
      const cells = this.spec.cells && { ...this.model, ...this.spec.cells(this.model, colours) };
      if (cells) paintHeatmap(this.cells, cells, this.frame, colours);
      Object.assign(this.plot, { cells }); // beside Plotly's `data`: what is drawn, for scripts that inspect a page
      await draw(this.plot, this.spec.draw(this.model, this.frame, colours, this.options.style?.()));
      this.mark(this.marks);
      this.shadeSteps(this.incident);
      this.placeCursor();
    }
    this.version += 1;
    this.plot.dataset.ready = String(this.version);
    this.plot.dispatchEvent(new Event(DRAWN, { bubbles: true }));
  }

  /** For who cannot see it. @param {import("../../types.js").StepRange} range */
  label(range) {
    return describe(this.spec, this.model, range);
  }

  /** Of the cells, which may be many MiB. */
  clear() {
    this.cells.hidden = true;
    this.cells.width = this.cells.height = 0;
    Object.assign(this.plot, { cells: undefined });
  }

  /** A hairline at each of these places of the axis. @param {readonly number[]} places */
  mark(places) {
    this.marks = places;
    const { frame } = this;
    if (!frame) return;
    const inside = places.filter((place) => place >= frame.range.start && place < frame.range.stop);
    this.hairlines.draw(inside.map((place) => pixelOf(place, frame)), frame.margin.t + frame.band + frame.plotHeight);
  }

  /** Shade these steps: of the incident that the page is about. @param {import("../../types.js").StepRange | null} range */
  shadeSteps(range) {
    this.incident = range;
    const { frame } = this;
    this.shade.hidden = !frame || !range || range.start >= frame.range.stop || range.stop <= frame.range.start;
    if (!frame || !range || this.shade.hidden) return;
    const from = pixelOf(Math.max(range.start, frame.range.start) - 0.5, frame);
    const to = pixelOf(Math.min(range.stop, frame.range.stop) - 0.5, frame);
    const height = this.spec.cells ? frame.band : frame.band + frame.plotHeight;
    Object.assign(this.shade.style, { left: `${Math.round(from)}px`, width: `${Math.max(1, Math.round(to - from))}px`, top: `${frame.margin.t}px`, height: `${height}px` });
    this.shade.toggleAttribute("data-begins", range.start >= frame.range.start);
  }

  /** Beside the plot where there is room, else above it. @param {import("../frame.js").Frame} frame */
  placeTitle({ margin }) {
    this.element.style.setProperty("--gutter", `${margin.l}px`);
    this.element.toggleAttribute("data-narrow", isNarrow(this.width));
  }

  /** Show a part of the figure's own axis; null shows all. @param {import("../../types.js").StepRange | null} range */
  zoom(range) {
    this.zoomed = range;
    void this.render();
  }

  /** Text in place of the plot, or the plot. @param {string} text */
  showMessage(text) {
    this.message.textContent = text;
    this.message.hidden = !text;
    this.wrap.classList.toggle("without-plot", Boolean(text));
  }

  /** Whether a place is among those drawn now. @param {{step: number}} spot */
  shows(spot) {
    return this.frame !== null && isOn(spot, this.frame);
  }

  /** The line through a step and its values, or nothing. @param {number | null} step @param {number | null} row */
  show(step, row) {
    if (!this.frame || !this.model) return;
    this.step = step;
    this.placeCursor();
    this.readout.textContent = step === null || this.cursor.hidden || this.spec.isEmpty(this.model) ? "" : this.spec.readout(this.model, step, row);
  }

  /** New steps move it with its own: the other lanes may come later. */
  placeCursor() {
    const { frame, step } = this;
    this.cursor.hidden = !frame || step === null || !this.shows({ step });
    if (!frame || step === null || this.cursor.hidden) return;
    this.cursor.style.transform = `translateX(${Math.round(pixelOf(step, frame))}px)`;
    this.cursor.style.height = `${frame.plotHeight}px`;
    this.cursor.style.top = `${frame.margin.t + frame.band}px`;
  }

  destroy() {
    this.gone = true;
    this.pointer.stop();
    this.panel.destroy();
    this.menu?.destroy();
    if (this.frame) purge(this.plot);
  }
}

/** Failures that are the page's to explain, not one figure's. @param {unknown} error */
function isPageWide(error) {
  return error instanceof ApiError && (error.status === 0 || error.status === 401);
}

/** What the store could not read of these steps; "" when it could read all. @param {import("../../types.js").FigureMeta} meta */
function damageNote({ damaged = [], damaged_tiles: tiles = 0 }) {
  if (damaged.length === 0) return "";
  const first = Math.min(...damaged.map((each) => each.first_step));
  const last = Math.max(...damaged.map((each) => each.last_step));
  return `${tiles === 1 ? "1 stored tile is" : `${tiles} stored tiles are`} damaged (steps ${first}-${last})`;
}

// Thin dotted lines down through a plot, under the marks above it. They take no pointer, and leave the data to be seen.

function createHairlines() {
  const element = el("div", { class: "hairlines", "aria-hidden": "true" });
  return {
    element,
    /** @param {readonly number[]} xs pixels from the left @param {number} height */
    draw(xs, height) {
      element.style.height = `${height}px`;
      replace(element, ...xs.map(lineAt));
    },
  };
}

/** @param {number} x */
function lineAt(x) {
  const line = el("span", {});
  line.style.transform = `translateX(${Math.round(x)}px)`;
  return line;
}
