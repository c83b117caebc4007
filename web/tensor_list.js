// The tensors of a run, which hardly ever become more: the list is long, and is asked for again only now and then.

import * as api from "./api.js";

/** @typedef {import("./types.js").Tensor} Tensor */

/** Milliseconds. */
const KEEP_MS = 30_000;

/**
 * Gives all tensors in call order; at once anew where the wanted one is not among those that are known.
 * @param {string} run @returns {(wanted: number | null, signal?: AbortSignal) => Promise<Tensor[]>}
 */
export function createTensorList(run) {
  /** @type {Tensor[]} */
  let tensors = [];
  let untilMs = -Infinity;
  return async (wanted, signal) => {
    const isThere = wanted === null || tensors.some(({ tensor }) => tensor === wanted);
    if (isThere && performance.now() < untilMs) return tensors;
    tensors = (await api.tensors(run, {}, signal)).tensors;
    untilMs = performance.now() + KEEP_MS;
    return tensors;
  };
}
