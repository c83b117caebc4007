// A grid of cells over a picture: which cell lies where, and what is merged where cells are thinner than a pixel. Pure.

/**
 * @typedef {object} Grid
 * @property {readonly string[]} rows names
 * @property {readonly string[]} columns names
 * @property {(row: number, column: number) => Cell} cell
 */
/** A number, `null` where it is not known, "blank" where there is nothing to know, "bad" what has failed. @typedef {number | null | "blank" | "bad"} Cell */
/** @typedef {{left: number, top: number, width: number, height: number}} Area the plot within its picture, pixels */
/** @typedef {{row: number, column: number}} Spot */

/** @param {number} size @param {number} cells @param {number} at */
const edge = (size, cells, at) => Math.round((at * size) / cells);

/** @param {Spot} spot @param {Grid} grid @param {Area} area @returns {Area} */
export function boxOf({ row, column }, { rows, columns }, area) {
  const left = edge(area.width, columns.length, column);
  const top = edge(area.height, rows.length, row);
  return {
    left: area.left + left,
    top: area.top + top,
    width: Math.max(1, edge(area.width, columns.length, column + 1) - left),
    height: Math.max(1, edge(area.height, rows.length, row + 1) - top),
  };
}

/** @param {number} x @param {number} y @param {Grid} grid @param {Area} area @returns {Spot | null} */
export function spotAt(x, y, { rows, columns }, area) {
  const column = Math.floor(((x - area.left) / area.width) * columns.length);
  const row = Math.floor(((y - area.top) / area.height) * rows.length);
  return column < 0 || row < 0 || column >= columns.length || row >= rows.length ? null : { row, column };
}

/** Of cells that share a pixel the one that matters most is seen. @param {Cell} a @param {Cell} b */
export const worse = (a, b) => (weight(b) > weight(a) ? b : a);

/** @param {Cell} cell */
function weight(cell) {
  if (cell === "bad") return Infinity;
  if (cell === "blank") return -2;
  return cell === null ? -1 : cell;
}

/**
 * The grid with at most so many rows and columns, with the worst of each: one hot cell of a thousand ranks still shows.
 * @param {Grid} grid @param {number} mostRows @param {number} mostColumns
 * @returns {{rows: number, columns: number, cells: Cell[]}}
 */
export function pooled(grid, mostRows, mostColumns) {
  const rows = Math.max(1, Math.min(grid.rows.length, Math.floor(mostRows)));
  const columns = Math.max(1, Math.min(grid.columns.length, Math.floor(mostColumns)));
  /** @type {Cell[]} */
  const cells = new Array(rows * columns).fill("blank");
  for (let row = 0; row < grid.rows.length; row += 1) {
    const to = Math.floor((row * rows) / grid.rows.length) * columns;
    for (let column = 0; column < grid.columns.length; column += 1) {
      const at = to + Math.floor((column * columns) / grid.columns.length);
      cells[at] = worse(cells[at], grid.cell(row, column));
    }
  }
  return { rows, columns, cells };
}

/** @type {Record<string, [number, number]>} */
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** A cell further by an arrow key; the first arrow enters at the end. @param {Spot | null} spot @param {string} key @param {Grid} grid @returns {Spot | null} */
export function movedSpot(spot, key, { rows, columns }) {
  const way = MOVES[key];
  if (!way || !rows.length || !columns.length) return null;
  const from = spot ?? { row: 0, column: columns.length };
  const within = (/** @type {number} */ at, /** @type {number} */ size) => Math.max(0, Math.min(size - 1, at));
  return { row: within(from.row + way[0], rows.length), column: within(from.column + way[1], columns.length) };
}
