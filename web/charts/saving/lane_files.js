// What the menu of a lane saves: its picture with title, axes and legend, its values, and links to the server's files.

import { clip, rankName } from "../../format/numbers.js";
import { STEPS, frameOf } from "../frame.js";
import { paintSwatch } from "../cells/patterns.js";
import { statesUrl } from "../cells/heatmap_canvas.js";
import { channels } from "../colours.js";
import { escapePlotText } from "../drawing.js";
import { SCALE_BITS, SCALE_TOP, STATE, STATE_LABELS, ticksOf } from "../statistics.js";
import { withCells } from "../heatmap.js";
import { pngUrl } from "../plotly.js";
import { palette } from "../theme.js";
import { dataBytes, everyValue, fileName } from "./files.js";
import { rowsOf } from "./rows.js";

/** @typedef {import("../lanes/lane.js").Lane} Lane */
/** @typedef {import("../lanes/lane.js").View} View */

/** Pixels of left margin of lines, which have no names there. */
const NUMBERS = 84;
const SWATCH = { width: 22, height: 12 };
const NO_FILES = "The server has no file behind this figure: these have what is shown. Fewer steps are shown more finely.";

/** @param {Lane} lane @returns {import("./figure_menu.js").Figure} */
export function laneFigure(lane) {
  return {
    fileName: () => nameOf(lane),
    picture: () => picture(lane),
    rows: () => (lane.model ? rowsOf(lane.model, lane.axis(), lane.spec.unit ?? lane.model.meta.unit) : null),
    files: () => (lane.view ? everyValue(lane.view.run.id, lane.spec.name, queryOf(lane, lane.view)) : []),
    noFiles: NO_FILES,
  };
}

/** @param {Lane} lane */
const titleOf = (lane) => lane.heading.textContent || lane.spec.title;

/** @param {Lane} lane @param {View} view @returns {import("../../api/client.js").Query} */
function queryOf(lane, view) {
  const { start, stop } = lane.zoomed && !lane.spec.axis ? lane.zoomed : view.range;
  return { ...lane.options.query?.(view), start, stop };
}

/** @param {Lane} lane @param {View} view @returns {number | "all" | null} */
function rankOf(lane, view) {
  const { rank } = queryOf(lane, view);
  return typeof rank === "number" || rank === "all" ? rank : null;
}

/** @param {Lane} lane */
function nameOf(lane) {
  if (!lane.view) return fileName(lane.spec.name);
  const { start, stop } = queryOf(lane, lane.view);
  const span = lane.axis() === STEPS ? ["steps", Number(start), Number(stop) - 1] : ["time"];
  return fileName("run", lane.view.run.id, lane.spec.name, ...span, rankName(rankOf(lane, lane.view)));
}

/** Run, range and rank: what a picture is of, once it has left its page. @param {Lane} lane @param {View} view */
function aboutOf(lane, view) {
  const { run, range } = view;
  const tensor = lane.model?.meta?.label ?? "";
  const parts = [`run ${clip(run.title || run.name, 60)}`, lane.axis().span(lane.zoomed && !lane.spec.axis ? lane.zoomed : range), rankName(rankOf(lane, view)), clip(tensor, 60), lane.note.textContent ?? ""];
  return parts.filter(Boolean).join(" · ");
}

/** @param {Lane} lane @returns {Promise<Blob>} */
async function picture(lane) {
  const { view, model, frame: shown } = lane;
  if (!view || !model || !shown) throw new Error("nothing is drawn yet");
  const colours = palette();
  const left = model.rows ? undefined : NUMBERS;
  const frame = pictureFrame(frameOf(Math.max(LEAST_WIDTH, shown.width), Math.max(shown.plotHeight, lane.spec.plotHeight(lane.rows().length)), shown.range, left), model, lane.spec.bar);
  const caption = { title: titleOf(lane), about: aboutOf(lane, view) };
  const axis = lane.spec.axis ? "tensor, in call order" : lane.axis().label;
  const marks = lane.marks.filter((place) => place >= shown.range.start && place < shown.range.stop);
  const swatches = model.states?.length ? stateSwatches(colours, model.statistic?.scale ?? "") : [];
  const drawing = pictureDrawing(wholeDrawing(lane, frame, colours), model, frame, colours, caption, { axis, marks, swatches, bar: lane.spec.bar });
  return new Blob([dataBytes(await pngUrl(drawing))], { type: "image/png" });
}

/** As on the screen, where the cells of a heatmap lie under the drawing. @param {Lane} lane @param {import("../frame.js").Frame} frame @param {import("../theme.js").Palette} colours */
function wholeDrawing({ spec, model, options }, frame, colours) {
  const drawing = spec.draw(model, frame, colours, options.style?.());
  if (!spec.cells) return drawing;
  const cells = { ...model, ...spec.cells(model, colours) };
  return withCells(drawing, cells, frame, statesUrl(cells, frame, colours));
}

/** Only of headroom is there a limit that a cell has met. @param {import("../theme.js").Palette} colours @param {string} scale of another statistic */
function stateSwatches(colours, scale) {
  const states = [...(scale ? [] : [STATE.saturated]), ...(scale === "room" ? [STATE.scaleTooSmall, STATE.scaleStale] : []), STATE.inf, STATE.nan, STATE.zero, STATE.notObserved, STATE.stale];
  return states.map((state) => ({ source: paintSwatch(state, colours, SWATCH.width, SWATCH.height).toDataURL(), label: STATE_LABELS[state].label, ...SWATCH }));
}

// A lane's drawing as a picture that is read alone: with a title, names of its axes and lines, and its scale.

/** @typedef {import("../drawing.js").Drawing} Drawing */
/** @typedef {import("../frame.js").Frame} Frame */
/** @typedef {import("../theme.js").Palette} Palette */
/** @typedef {{title: string, about: string}} Caption what it is, and of what: run, range, rank */
/** @typedef {{source: string, label: string, width: number, height: number}} Swatch a data URL, and what it means */

/** Pixels for the title, for names of lines under it, for the axis' name, and for the scale at the foot. */
export const TITLE = 46;
const TITLE_LINE = 22;
export const LINES = 16;
const AXIS = 16;
const SCALE = 54;
const SCALE_WIDTH = 250;
const LETTER = 5.6;
/** Narrower pictures have no room for their title. */
export const LEAST_WIDTH = 640;

/** @typedef {{title: string, tickvals: readonly number[], ticktext: readonly string[]}} Bar a scale of colours, explained */

/** The frame that such a picture is drawn in. @param {Frame} frame @param {any} model @param {Bar} [bar] of a lane that has one of its own @returns {Frame} */
export function pictureFrame(frame, model, bar) {
  const top = TITLE + (model.series?.length > 1 ? LINES : 0);
  const bottom = AXIS + (barOf(model, bar) ? SCALE : 0);
  return { ...frame, height: frame.height + top + bottom, margin: { ...frame.margin, t: frame.margin.t + top, b: frame.margin.b + bottom } };
}

/**
 * @param {Drawing} drawing in the frame of `pictureFrame` @param {any} model @param {Frame} frame @param {Palette} palette
 * @param {Caption} caption @param {{axis: string, marks: readonly number[], swatches: readonly Swatch[], bar?: Bar}} more
 * @returns {Drawing}
 */
export function pictureDrawing(drawing, model, frame, palette, caption, { axis, marks, swatches, bar }) {
  const layout = /** @type {any} */ (drawing.layout);
  return {
    traces: drawing.traces.map((trace, i) => pictureTrace(trace, i, drawing.traces.length, model, palette, barOf(model, bar))),
    layout: {
      ...layout,
      paper_bgcolor: palette.panel,
      title: pictureTitle(caption, frame, palette),
      xaxis: { ...layout.xaxis, title: { text: escapePlotText(axis), standoff: 2, font: { size: 11 } } },
      shapes: [...(layout.shapes ?? []), ...marks.map((at) => hairline(at, palette))],
      images: [...(layout.images ?? []), ...swatches.map((swatch, i) => swatchImage(swatch, i, frame))],
      annotations: [...(layout.annotations ?? []), ...scaleTitle(barOf(model, bar), frame, palette), ...swatches.map((swatch, i) => swatchText(swatch, i, frame, palette))],
      showlegend: (model.series?.length ?? 0) > 1,
      legend: pictureLegend(palette),
    },
  };
}

/** Names of lines, over the plot. @param {Palette} palette */
export const pictureLegend = (palette) => ({ orientation: "h", x: 1, xanchor: "right", y: 1, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)", font: { size: 11, color: palette.muted } });

/** @param {Caption} caption @param {{width: number, height: number}} frame @param {Palette} palette */
export function pictureTitle({ title, about }, { width, height }, palette) {
  const room = Math.floor((width - 24) / LETTER);
  const line = (/** @type {string} */ text, /** @type {number} */ most) => escapePlotText(text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const text = `<b>${line(title, Math.floor(room * 0.8))}</b><br><span style="font-size:11px;color:${rgbText(palette.muted)}">${line(about, room)}</span>`;
  return { text, x: 12 / width, xref: "container", xanchor: "left", y: 1 - TITLE_LINE / height, yref: "container", yanchor: "bottom", font: { size: 14, color: palette.ink } };
}

/** Plotly's markup knows colours without an alpha. @param {string} colour as the browser resolves it */
const rgbText = (colour) => `rgb(${channels(colour).join(",")})`;

/** @param {any} trace @param {number} at @param {number} count @param {any} model @param {Palette} palette @param {Bar | null} bar */
function pictureTrace(trace, at, count, model, palette, bar) {
  if (trace.type === "heatmap") return bar ? { ...trace, ...scaleBar(bar, palette) } : trace;
  if (trace.yaxis === "y2") return { ...trace, name: "NaN or Inf", showlegend: trace.x.length > 0 };
  const series = model.series ?? [];
  const own = series.find((/** @type {any} */ one) => one.x === trace.x && one.y === trace.y) ?? (count === series.length ? series[at] : null);
  return { ...trace, name: escapePlotText(own?.name ?? ""), showlegend: Boolean(own?.name) && trace.x.length > 0 };
}

/** What the colours of a heatmap mean; null of lines. @param {any} model @param {Bar} [own] @returns {Bar | null} */
function barOf(model, own) {
  if (own) return own;
  if (model.measured) return { title: "share of the non-zero elements", tickvals: [-6, -4, -2, 0], ticktext: ["1e-6", "1e-4", "1e-2", "all"] };
  if (!model.states) return null;
  const { statistic } = model;
  if (statistic && (statistic.scale !== "bits" || statistic.low < 0)) return statisticBar(statistic);
  const text = SCALE_BITS.map((at) => (at === SCALE_TOP ? `${at}+` : String(at)));
  return { title: `${(statistic?.title ?? "headroom").toLowerCase()}, bits`, tickvals: SCALE_BITS, ticktext: text };
}

/** @param {import("../statistics.js").Statistic} statistic @returns {Bar} */
function statisticBar(statistic) {
  const { title, scale, low, high } = statistic;
  if (scale !== "bits") return { title: title.toLowerCase(), tickvals: ticksOf(statistic).map(({ at }) => low + at * (high - low)), ticktext: ticksOf(statistic).map(({ text }) => text) };
  const places = [low, low / 2, 0, high / 2, high];
  return { title: `${title.toLowerCase()}, bits`, tickvals: places, ticktext: places.map((at) => (at > 0 ? `+${at}` : String(at))) };
}

/** Above the bar: Plotly would set it into it. @param {Bar | null} bar @param {Frame} frame @param {Palette} palette */
function scaleTitle(bar, frame, palette) {
  if (!bar) return [];
  const place = { xref: "paper", yref: "paper", x: 0, y: swatchPlace(0, frame).y, xanchor: "left", yanchor: "middle" };
  return [{ ...place, text: escapePlotText(bar.title), showarrow: false, font: { size: 11, color: palette.muted } }];
}

/** @param {Bar} bar @param {Palette} palette */
function scaleBar({ tickvals, ticktext }, palette) {
  const place = { orientation: "h", x: 0, xref: "paper", xanchor: "left", y: 0, yref: "container", yanchor: "bottom", ypad: 4, xpad: 0 };
  const style = { len: SCALE_WIDTH, lenmode: "pixels", thickness: 9, outlinewidth: 0, tickangle: 0, tickfont: { size: 10, color: palette.muted }, ticks: "" };
  return { showscale: true, colorbar: { ...place, ...style, tickvals, ticktext } };
}

/** @param {number} at @param {Palette} palette */
const hairline = (at, palette) => ({ type: "line", xref: "x", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, opacity: 0.5, line: { color: palette.ink, width: 1, dash: "dot" } });

/** Two rows of three beside the scale. Fractions of the plot, as Plotly asks for. @param {number} i @param {Frame} frame */
function swatchPlace(i, { plotWidth, plotHeight, band, margin }) {
  const [column, row] = [Math.floor(i / 2), i % 2];
  const left = SCALE_WIDTH + 24 + column * 100;
  const down = margin.b - SCALE + 16 + row * 18;
  return { x: left / plotWidth, y: -down / (plotHeight + band) };
}

/** @param {Swatch} swatch @param {number} i @param {Frame} frame */
function swatchImage({ source, width, height }, i, frame) {
  const { plotWidth, plotHeight, band } = frame;
  const size = { sizex: width / plotWidth, sizey: height / (plotHeight + band) };
  return { source, xref: "paper", yref: "paper", ...swatchPlace(i, frame), ...size, xanchor: "left", yanchor: "middle", sizing: "stretch", layer: "above" };
}

/** @param {Swatch} swatch @param {number} i @param {Frame} frame @param {Palette} palette */
function swatchText({ label, width }, i, frame, palette) {
  const place = { xref: "paper", yref: "paper", ...swatchPlace(i, frame), xshift: width + 4, xanchor: "left", yanchor: "middle" };
  return { ...place, text: escapePlotText(label), showarrow: false, font: { size: 11, color: palette.muted } };
}
