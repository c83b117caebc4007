// Thrift's compact protocol, as much of it as the headers of a Parquet file need; no number is negative. Pure.
// https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

/** @typedef {{type: number, bytes: number[]}} Value its type's number in the protocol, and itself */

const ENCODER = new TextEncoder();
const STRUCT = 12;
/** What a list's first byte says in place of a length that it has no room for. */
const LONG_LIST = 15;

/** ULEB128. @param {number} value a whole number from 0 to 2^53 @returns {number[]} */
export function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) + 128);
  bytes.push(value);
  return bytes;
}

/** Doubled, since the lowest bit is the sign. @param {number} value @returns {Value} */
export const i32 = (value) => ({ type: 5, bytes: varint(2 * value) });

/** @param {number} value @returns {Value} */
export const i64 = (value) => ({ type: 6, bytes: varint(2 * value) });

/** @param {string} value @returns {Value} */
export function text(value) {
  const bytes = ENCODER.encode(value);
  return { type: 8, bytes: [...varint(bytes.length), ...bytes] };
}

/** @param {readonly Value[]} items of one type; an empty list is one of structs @returns {Value} */
export function list(items) {
  const length = items.length < LONG_LIST ? [] : varint(items.length);
  const head = Math.min(items.length, LONG_LIST) * 16 + (items[0]?.type ?? STRUCT);
  return { type: 9, bytes: [head, ...length, ...items.flatMap(({ bytes }) => bytes)] };
}

/** @param {Record<number, Value>} fields by their numbers, each less than 16 above the one before @returns {Value} */
export function struct(fields) {
  let last = 0;
  const bytes = Object.entries(fields).flatMap(([key, value]) => {
    const step = Number(key) - last;
    last = Number(key);
    return [step * 16 + value.type, ...value.bytes];
  });
  return { type: STRUCT, bytes: [...bytes, 0] };
}
