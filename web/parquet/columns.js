// The values of a column as Parquet encodes them: numbers plain, text by a dictionary, since a figure's rows repeat their names.
// Little-endian, as every machine is that a browser runs on. Pure.
// https://parquet.apache.org/docs/file-format/data-pages/encodings/

import { varint } from "./thrift.js";

/** @typedef {import("../csv.js").Value} Value */
/** @typedef {Uint8Array<ArrayBuffer>} Bytes */
/** @typedef {{isText: boolean, put: (value: Value) => void, encoded: () => Encoded}} Column `put` takes the next row's value */
/** @typedef {{levels: Bytes, values: Bytes, dictionary?: {count: number, bytes: Bytes}}} Encoded levels: 1 for a value, 0 for null, which has no value */

const ENCODER = new TextEncoder();

/** @param {number} value */
export const uint32 = (value) => [value & 255, (value >>> 8) & 255, (value >>> 16) & 255, value >>> 24];

/** Run-length encoding. @param {readonly number[]} values @param {number} width bits of each, at least 1 */
export function runs(values, width) {
  const bytes = [];
  for (let at = 0, next = 0; at < values.length; at = next) {
    while (next < values.length && values[next] === values[at]) next += 1;
    bytes.push(...varint((next - at) * 2));
    for (let shift = 0; shift < width; shift += 8) bytes.push((values[at] >>> shift) & 255);
  }
  return bytes;
}

/** @param {readonly boolean[]} present by row */
function levelsOf(present) {
  const bytes = runs(present.map(Number), 1);
  return new Uint8Array([...uint32(bytes.length), ...bytes]);
}

/** DOUBLE; a number that is not finite is null, as it is empty in CSV. @param {string} name @returns {Column} */
export function numberColumn(name) {
  /** @type {number[]} */
  const all = [];
  return {
    isText: false,
    put(value) {
      if (typeof value === "string" || typeof value === "boolean") throw new TypeError(`${name} holds numbers, not ${JSON.stringify(value)}`);
      all.push(value ?? NaN);
    },
    encoded: () => ({ levels: levelsOf(all.map(Number.isFinite)), values: new Uint8Array(Float64Array.from(all.filter(Number.isFinite)).buffer) }),
  };
}

/** STRING: each text once, and which of them a row has. @returns {Column} */
export function textColumn() {
  /** @type {Map<string, number>} */
  const known = new Map();
  /** @type {number[]} -1: null */
  const all = [];
  return {
    isText: true,
    put(value) {
      const isNull = value === null || value === undefined;
      if (!isNull && !known.has(String(value))) known.set(String(value), known.size);
      all.push(isNull ? -1 : Number(known.get(String(value))));
    },
    encoded() {
      const width = Math.max(1, Math.ceil(Math.log2(known.size)));
      const values = new Uint8Array([width, ...runs(all.filter((at) => at >= 0), width)]);
      return { levels: levelsOf(all.map((at) => at >= 0)), values, dictionary: { count: known.size, bytes: strings([...known.keys()]) } };
    },
  };
}

/** Each with its length before it. @param {readonly string[]} values */
function strings(values) {
  const parts = values.map((value) => ENCODER.encode(value));
  const out = new Uint8Array(parts.reduce((sum, { length }) => sum + 4 + length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(uint32(part.length), at);
    out.set(part, at + 4);
    at += 4 + part.length;
  }
  return out;
}
