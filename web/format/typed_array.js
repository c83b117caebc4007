// Decodes the base64 typed arrays of the server's figures.

/** @type {Record<string, {new (buffer: ArrayBuffer): ArrayLike<number>}>} */
const TYPES = {
  f4: Float32Array, f8: Float64Array, i1: Int8Array, u1: Uint8Array,
  i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array,
};

/**
 * Flat values, row after row; null, NaN and a missing array all read as "nothing there".
 * @param {any} spec a typed array spec, a list, or a list of lists
 * @returns {ArrayLike<number>}
 */
export function decode(spec) {
  if (!spec) return [];
  if (Array.isArray(spec)) return Float64Array.from(spec.flat(), (value) => (value === null ? NaN : value));
  const type = TYPES[spec.dtype];
  if (!type) throw new TypeError(`unknown array type ${spec.dtype}`);
  const { fromBase64 } = /** @type {any} */ (Uint8Array);
  if (fromBase64) return new type(fromBase64.call(Uint8Array, spec.bdata).buffer); // ten times as fast; Chromium 140, Firefox 133, Safari 18.2
  const text = atob(spec.bdata);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return new type(bytes.buffer);
}
