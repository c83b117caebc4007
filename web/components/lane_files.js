// A lane as its menu sees it: picture, values, files of the server.

import { STEPS } from "../figure_axis.js";
import { everyValue, fileName } from "../figure_files.js";
import { frameOf } from "../figure_frame.js";
import { LEAST_WIDTH, pictureDrawing, pictureFrame } from "../figure_picture.js";
import { rowsOf } from "../figure_rows.js";
import { clip, rankName } from "../format.js";
import { STATE, STATE_WORDS } from "../headroom.js";
import { cellsBox, withCells } from "../heat_cells.js";
import { pictureUrl } from "../plot.js";
import { dataBytes, dataText } from "../save_file.js";
import { paintSwatch, statesUrl } from "../state_canvas.js";
import { withTitle } from "../svg_pen.js";
import { palette } from "../theme.js";

/** @typedef {import("./lane.js").Lane} Lane */
/** @typedef {import("./lane.js").View} View */

/** Pixels of left margin of lines, which have no names there. */
const NUMBERS = 84;
const SWATCH = { width: 22, height: 12 };
const NO_FILES = "The server has no file behind this figure: these have what is shown. Fewer steps are shown more finely.";

/** @param {Lane} lane @returns {import("./figure_menu.js").Figure} */
export function laneFigure(lane) {
  return {
    fileName: () => nameOf(lane),
    picture: (format) => picture(lane, format),
    rows: () => (lane.model ? rowsOf(lane.model, lane.axis(), lane.spec.unit) : null),
    files: () => (lane.view ? everyValue(lane.view.run.id, lane.spec.name, queryOf(lane, lane.view)) : []),
    noFiles: NO_FILES,
  };
}

/** @param {Lane} lane */
export const titleOf = (lane) => lane.heading.textContent || lane.spec.title;

/** @param {Lane} lane @param {View} view @returns {import("../api.js").Query} */
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

/** @param {Lane} lane @param {"png" | "svg"} format @returns {Promise<Blob>} */
async function picture(lane, format) {
  const { view, model, frame: shown } = lane;
  if (!view || !model || !shown) throw new Error("nothing is drawn yet");
  const colours = palette();
  const left = model.rows ? undefined : NUMBERS;
  const frame = pictureFrame(frameOf(Math.max(LEAST_WIDTH, shown.width), shown.plotHeight, shown.range, left), model, lane.spec.bar);
  const caption = { title: titleOf(lane), about: aboutOf(lane, view) };
  const axis = lane.spec.axis ? "tensor, in call order" : lane.axis().label;
  const marks = lane.marks.filter((place) => place >= shown.range.start && place < shown.range.stop);
  const swatches = model.states?.length ? stateSwatches(colours, Boolean(model.statistic)) : [];
  const drawing = pictureDrawing(wholeDrawing(lane, frame, colours), model, frame, colours, caption, { axis, marks, swatches, bar: lane.spec.bar });
  const url = await pictureUrl(drawing, format);
  if (format === "png") return new Blob([dataBytes(url)], { type: "image/png" });
  return new Blob([withTitle(dataText(url), caption.title, caption.about)], { type: "image/svg+xml" });
}

/** As on the screen, where the cells of a heatmap lie under the drawing. @param {Lane} lane @param {import("../figure_frame.js").Frame} frame @param {import("../theme.js").Palette} colours */
function wholeDrawing({ spec, model }, frame, colours) {
  const drawing = spec.draw(model, frame, colours);
  if (!spec.cells) return drawing;
  const cells = spec.cells(model, colours);
  return withCells(drawing, cells, frame, statesUrl(cells, cellsBox(cells, frame), frame.plotWidth, colours));
}

/** Only of headroom is there a limit that a cell has met. @param {import("../theme.js").Palette} colours @param {boolean} isOther */
function stateSwatches(colours, isOther) {
  const states = [...(isOther ? [] : [STATE.saturated]), STATE.inf, STATE.nan, STATE.zero, STATE.notObserved, STATE.stale];
  return states.map((state) => ({ source: paintSwatch(state, colours, SWATCH.width, SWATCH.height).toDataURL(), word: STATE_WORDS[state].word, ...SWATCH }));
}
