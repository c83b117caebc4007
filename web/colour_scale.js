// One sequential scale for costs and slowdowns: cool and pale while it does not matter, hot when it does. Pure.

/**
 * @typedef {object} Scale
 * @property {number} low at and below it all is calm
 * @property {number} high at and above it is as hot as it gets
 * @property {readonly number[]} ticks
 * @property {(value: number) => string} text
 */

/** Where a value lies on a logarithmic scale, 0 calm to 1 hot. @param {number} value @param {Pick<Scale, "low" | "high">} scale */
export function share(value, { low, high }) {
  if (!(value > low)) return 0;
  return Math.min(1, Math.log(value / low) / Math.log(high / low));
}

/** @param {string} colour "rgb(1, 2, 3)", as the browser resolves it @returns {number[]} */
export const channels = (colour) => (colour.match(/[\d.]+/g) ?? ["0", "0", "0"]).slice(0, 3).map(Number);

/**
 * A colour between those of the ramp.
 * @param {readonly string[]} ramp hot first, as the palette's headroom colours are @param {number} at 0 calm to 1 hot
 * @returns {[number, number, number]}
 */
export function colourAt(ramp, at) {
  const place = (1 - at) * (ramp.length - 1);
  const below = Math.min(ramp.length - 2, Math.floor(place));
  const [from, to] = [channels(ramp[below]), channels(ramp[below + 1])];
  const mixed = from.map((channel, i) => Math.round(channel + (to[i] - channel) * (place - below)));
  return [mixed[0], mixed[1], mixed[2]];
}
