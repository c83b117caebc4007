// Figures that are asked for in one turn are asked for together: a request costs the server about as much as a figure,
// and of one answer all are of one moment.

/** @typedef {import("./types.js").FigureAnswer} FigureAnswer */
/**
 * @typedef {object} Wanted
 * @property {string} text its name and parameters, as in an address
 * @property {(answer: FigureAnswer) => void} resolve
 * @property {(error: unknown) => void} reject
 */
/** @typedef {{run: string, signal: AbortSignal | undefined, letters: number, wanted: Wanted[]}} Batch */

/** The server answers no more of them at once. */
const MOST = 24;
/** Of an address: proxies take no more than 8,000, and the server 4,096 of one figure. */
const MOST_LETTERS = 4000;

/**
 * @param {(run: string, text: string, signal?: AbortSignal) => Promise<FigureAnswer>} one
 * @param {(run: string, wanted: readonly Wanted[], signal?: AbortSignal) => Promise<void>} several settles each of them, or fails
 * @returns {(run: string, text: string, signal?: AbortSignal) => Promise<FigureAnswer>}
 */
export function createFigureBatch(one, several) {
  /** Of this turn. @type {Batch[]} */
  let batches = [];

  function ask() {
    const asked = batches;
    batches = [];
    for (const { run, signal, wanted } of asked) {
      const [first, ...more] = wanted;
      if (more.length === 0) one(run, first.text, signal).then(first.resolve, first.reject);
      else several(run, wanted, signal).catch((error) => wanted.forEach(({ reject }) => reject(error)));
    }
  }

  /** @param {string} run @param {AbortSignal | undefined} signal @param {number} letters */
  function batchFor(run, signal, letters) {
    const fits = (/** @type {Batch} */ each) => each.run === run && each.signal === signal && each.wanted.length < MOST && each.letters + letters <= MOST_LETTERS;
    if (batches.length === 0) queueMicrotask(ask);
    const found = batches.find(fits) ?? { run, signal, letters: 0, wanted: [] };
    if (found.wanted.length === 0) batches.push(found);
    return found;
  }

  return (run, text, signal) =>
    new Promise((resolve, reject) => {
      const letters = encodeURIComponent(text).length;
      const batch = batchFor(run, signal, letters);
      batch.letters += letters;
      batch.wanted.push({ text, resolve, reject });
    });
}
