// Writes rows as a Parquet file: one row group, uncompressed, a data page a column. Fetched when the first such file is
// asked for. Pure.
// https://github.com/apache/parquet-format: README.md for the layout, src/main/thrift/parquet.thrift for names and
// numbers.

// Thrift's compact protocol, as much of it as the headers of a Parquet file need; no number is negative.
// https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

/** @typedef {{type: number, bytes: number[]}} ThriftValue its type's number in the protocol, and itself */

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

/** Doubled, since the lowest bit is the sign. @param {number} value @returns {ThriftValue} */
export const i32 = (value) => ({ type: 5, bytes: varint(2 * value) });

/** @param {number} value @returns {ThriftValue} */
export const i64 = (value) => ({ type: 6, bytes: varint(2 * value) });

/** @param {string} value @returns {ThriftValue} */
export function text(value) {
  const bytes = ENCODER.encode(value);
  return { type: 8, bytes: [...varint(bytes.length), ...bytes] };
}

/** @param {readonly ThriftValue[]} items of one type; an empty list is one of structs @returns {ThriftValue} */
export function list(items) {
  const length = items.length < LONG_LIST ? [] : varint(items.length);
  const head = Math.min(items.length, LONG_LIST) * 16 + (items[0]?.type ?? STRUCT);
  return { type: 9, bytes: [head, ...length, ...items.flatMap(({ bytes }) => bytes)] };
}

/** @param {Record<number, ThriftValue>} fields by their numbers, each less than 16 above the one before @returns {ThriftValue} */
export function struct(fields) {
  let last = 0;
  const bytes = Object.entries(fields).flatMap(([key, value]) => {
    const step = Number(key) - last;
    last = Number(key);
    return [step * 16 + value.type, ...value.bytes];
  });
  return { type: STRUCT, bytes: [...bytes, 0] };
}

/** @typedef {{about: ThriftValue, length: number}} Chunk what the footer says of a column, and its bytes */

const MAGIC = Uint8Array.from("PAR1", (letter) => letter.charCodeAt(0));
const TYPE = { double: 5, byteArray: 6 };
const PAGE = { data: 0, dictionary: 2 };
const ENCODING = { plain: 0, rle: 3, rleDictionary: 8 };
const OPTIONAL = 1;
const UTF8 = 0;
const UNCOMPRESSED = 0;
/** What a column is if not just its type. @type {Record<"string" | "plain", Record<number, ThriftValue>>} */
const MEANING = { string: { 6: i32(UTF8), 10: struct({ 1: struct({}) }) }, plain: {} };

/** @param {readonly Bytes[]} parts */
const lengthOf = (parts) => parts.reduce((sum, { length }) => sum + length, 0);

/** @param {Column} column */
const typeOf = ({ isText }) => (isText ? TYPE.byteArray : TYPE.double);

/**
 * The file in parts, as a Blob takes them: `textColumns` as strings, all others as doubles, null for what is unknown.
 * @param {import("./files.js").Rows} data @returns {Bytes[]} @throws {TypeError} text in a column of numbers
 */
export function parquetParts({ columns: names, textColumns, rows }) {
  const columns = names.map((name) => (textColumns.includes(name) ? textColumn() : numberColumn(name)));
  let count = 0;
  for (const row of rows) {
    columns.forEach((column, i) => column.put(row[i]));
    count += 1;
  }
  const parts = [MAGIC];
  const chunks = count ? columns.map((column, i) => addChunk(parts, names[i], column, count)) : [];
  const footer = Uint8Array.from(footerOf(names, columns, chunks, count).bytes);
  return [...parts, footer, Uint8Array.from(uint32(footer.length)), MAGIC];
}

/** @param {Bytes[]} file so far @param {string} name @param {Column} column @param {number} count of rows @returns {Chunk} */
function addChunk(file, name, column, count) {
  const { levels, values, dictionary } = column.encoded();
  const start = lengthOf(file);
  if (dictionary) file.push(...page(PAGE.dictionary, { 7: struct({ 1: i32(dictionary.count), 2: i32(ENCODING.plain) }) }, [dictionary.bytes]));
  const at = lengthOf(file);
  const encoding = dictionary ? ENCODING.rleDictionary : ENCODING.plain;
  file.push(...page(PAGE.data, { 5: struct({ 1: i32(count), 2: i32(encoding), 3: i32(ENCODING.rle), 4: i32(ENCODING.rle) }) }, [levels, values]));
  const length = lengthOf(file) - start;
  const encodings = list([ENCODING.plain, ENCODING.rle, ...(dictionary ? [encoding] : [])].map(i32));
  /** @type {Record<number, ThriftValue>} */
  const about = { 1: i32(typeOf(column)), 2: encodings, 3: list([text(name)]), 4: i32(UNCOMPRESSED), 5: i64(count), 6: i64(length), 7: i64(length), 9: i64(at) };
  if (dictionary) about[11] = i64(start);
  return { about: struct({ 2: i64(0), 3: struct(about) }), length };
}

/** @param {number} kind @param {Record<number, ThriftValue>} header the kind's own @param {readonly Bytes[]} content */
function page(kind, header, content) {
  const size = i32(lengthOf(content));
  return [Uint8Array.from(struct({ 1: i32(kind), 2: size, 3: size, ...header }).bytes), ...content];
}

/** @param {readonly string[]} names @param {readonly Column[]} columns @param {readonly Chunk[]} chunks none where there is no row @param {number} count of rows */
function footerOf(names, columns, chunks, count) {
  const root = struct({ 4: text("schema"), 5: i32(names.length) });
  const fields = columns.map((column, i) => struct({ 1: i32(typeOf(column)), 3: i32(OPTIONAL), 4: text(names[i]), ...MEANING[column.isText ? "string" : "plain"] }));
  const bytes = chunks.reduce((sum, { length }) => sum + length, 0);
  const group = struct({ 1: list(chunks.map(({ about }) => about)), 2: i64(bytes), 3: i64(count) });
  return struct({ 1: i32(1), 2: list([root, ...fields]), 3: i64(count), 4: list(chunks.length ? [group] : []), 6: text("rangewatch") });
}

// The values of a column as Parquet encodes them: numbers plain, text by a dictionary, since a figure's rows repeat their names.
// Little-endian, as every machine is that a browser runs on.
// https://parquet.apache.org/docs/file-format/data-pages/encodings/

/** @typedef {import("./files.js").Value} Value */
/** @typedef {Uint8Array<ArrayBuffer>} Bytes */
/** @typedef {{isText: boolean, put: (value: Value) => void, encoded: () => Encoded}} Column `put` takes the next row's value */
/** @typedef {{levels: Bytes, values: Bytes, dictionary?: {count: number, bytes: Bytes}}} Encoded levels: 1 for a value, 0 for null, which has no value */

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
