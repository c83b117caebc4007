// Where cells with a state land in pixels, and which labels have room. Pure.

/** Non-finite and saturated cells are never drawn smaller: one step in 100,000 must still show. Pixels. */
export const LEAST_PIXELS = 3;

/** @typedef {{row: number, from: number, to: number, state: number}} Span Columns from (inclusive) to (exclusive). */
/** @typedef {{x: number, y: number, width: number, height: number}} Box */
/** @typedef {{rows: number, columns: number, width: number, height: number}} Grid */

/**
 * Neighbours of one state in a row as one span: a run that is NaN from half-way on paints one box a row.
 * @param {ArrayLike<number>} states @param {number} rows @param {number} columns @returns {Span[]}
 */
export function stateSpans(states, rows, columns) {
  /** @type {Span[]} */
  const spans = [];
  for (let row = 0; row < rows; row += 1) {
    for (let from = 0, to; from < columns; from = to) {
      const state = states[row * columns + from];
      for (to = from + 1; to < columns && states[row * columns + to] === state; to += 1);
      if (state !== 0) spans.push({ row, from, to, state });
    }
  }
  return spans;
}

/**
 * The box of a span in whole pixels, at least `least` in both directions and inside the grid.
 * @param {Span} span @param {Grid} grid @param {number} least
 * @returns {Box}
 */
export function spanBox(span, grid, least) {
  const across = side(span.from, span.to, grid.columns, grid.width, least);
  const down = side(span.row, span.row + 1, grid.rows, grid.height, least);
  return { x: across.at, width: across.size, y: down.at, height: down.size };
}

/** @param {number} from @param {number} to @param {number} cells @param {number} pixels @param {number} least */
function side(from, to, cells, pixels, least) {
  const start = Math.round((from * pixels) / cells);
  const end = Math.round((to * pixels) / cells);
  if (end - start >= least) return { at: start, size: end - start };
  const size = Math.min(least, pixels);
  const centred = Math.round(((from + to) * pixels) / (2 * cells) - size / 2);
  return { at: Math.max(0, Math.min(pixels - size, centred)), size };
}

/**
 * Row numbers that get a label: evenly spread, none closer than `spacing` pixels.
 * @param {number} rows @param {number} height @param {number} spacing
 */
export function labelledRows(rows, height, spacing) {
  const every = Math.max(1, Math.ceil((rows * spacing) / Math.max(1, height)));
  return Array.from({ length: Math.ceil(rows / every) }, (_, i) => i * every);
}

/**
 * Marks for the band above a plot, none closer than `gap` steps to the one before: thousands would only smear.
 * @param {ArrayLike<number>} sorted steps @param {number} gap
 */
export function thinned(sorted, gap) {
  /** @type {number[]} */
  const kept = [];
  for (const step of Array.from(sorted)) {
    if (!kept.length || step - kept[kept.length - 1] >= gap) kept.push(step);
  }
  return kept;
}
