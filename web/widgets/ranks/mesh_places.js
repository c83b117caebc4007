// Where ranks stand on the run's mesh: by what they can be arranged and folded, and what a rank is called with its place.
// Pure.

/** @typedef {Pick<import("../../types.js").Run, "ranks" | "mesh">} Placed */
/** @typedef {{name: string, text: string}} Choice */

/** By the machine; beside the axes of the mesh. */
export const NODE = "node";

/** Of more than one rank; joined ones, such as "dp_cp", last. @param {Placed} run */
export function axesOf({ mesh }) {
  const some = (mesh?.axes ?? []).filter(({ size }) => size > 1);
  return [...some.filter((axis) => !axis.is_joined), ...some.filter((axis) => axis.is_joined)];
}

/** What ranks can be arranged by. @param {Placed} run @returns {Choice[]} */
export function choicesOf(run) {
  const axes = axesOf(run).map(({ name, size }) => ({ name, text: `${name} (${size})` }));
  const nodes = new Set(run.ranks.map(({ host }) => host)).size;
  return [...(nodes > 1 ? [{ name: NODE, text: `node (${nodes})` }] : []), ...axes];
}

/** What the address asks for, if the run has it. @param {Placed} run @param {string} name */
export const known = (run, name) => (choicesOf(run).some((one) => one.name === name) ? name : "");

/** Rank -> its place, such as "pp 0, dp 1, tp 1"; "" where it is not known. @param {Placed} run @returns {Map<number, string>} */
export function placesOf(run) {
  const axes = axesOf(run).filter((axis) => !axis.is_joined);
  const place = (/** @type {Record<string, number>} */ at) => axes.flatMap(({ name }) => (at[name] === undefined ? [] : [`${name} ${at[name]}`])).join(", ");
  return new Map(run.ranks.map(({ rank, coordinates = {} }) => [rank, place(coordinates)]));
}

/** Such as "rank 13 (node1, pp 0, dp 1, tp 1)"; of a run on one machine without it. @param {Placed} run @param {number} rank */
export function rankName(run, rank) {
  const info = run.ranks.find((one) => one.rank === rank);
  const isOne = new Set(run.ranks.map(({ host }) => host)).size < 2;
  const parts = [isOne ? "" : info?.host ?? "", placesOf(run).get(rank)].filter(Boolean);
  return parts.length ? `rank ${rank} (${parts.join(", ")})` : `rank ${rank}`;
}
