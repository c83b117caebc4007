// Rows as a Parquet file: one row group, uncompressed, a data page a column. Fetched when the first such file is asked for. Pure.
// https://github.com/apache/parquet-format: README.md for the layout, src/main/thrift/parquet.thrift for names and numbers.

import { numberColumn, textColumn, uint32 } from "./columns.js";
import { i32, i64, list, struct, text } from "./thrift.js";

/** @typedef {import("./columns.js").Bytes} Bytes */
/** @typedef {import("./columns.js").Column} Column */
/** @typedef {import("./thrift.js").Value} Value */
/** @typedef {{about: Value, length: number}} Chunk what the footer says of a column, and its bytes */

const MAGIC = Uint8Array.from("PAR1", (letter) => letter.charCodeAt(0));
const TYPE = { double: 5, byteArray: 6 };
const PAGE = { data: 0, dictionary: 2 };
const ENCODING = { plain: 0, rle: 3, rleDictionary: 8 };
const OPTIONAL = 1;
const UTF8 = 0;
const UNCOMPRESSED = 0;
/** What a column is if not just its type. @type {Record<"string" | "plain", Record<number, Value>>} */
const MEANING = { string: { 6: i32(UTF8), 10: struct({ 1: struct({}) }) }, plain: {} };

/** @param {readonly Bytes[]} parts */
const lengthOf = (parts) => parts.reduce((sum, { length }) => sum + length, 0);

/** @param {Column} column */
const typeOf = ({ isText }) => (isText ? TYPE.byteArray : TYPE.double);

/**
 * The file in parts, as a Blob takes them: `textColumns` as strings, all others as doubles, null for what is unknown.
 * @param {import("../csv.js").Rows} data @returns {Bytes[]} @throws {TypeError} text in a column of numbers
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
  /** @type {Record<number, Value>} */
  const about = { 1: i32(typeOf(column)), 2: encodings, 3: list([text(name)]), 4: i32(UNCOMPRESSED), 5: i64(count), 6: i64(length), 7: i64(length), 9: i64(at) };
  if (dictionary) about[11] = i64(start);
  return { about: struct({ 2: i64(0), 3: struct(about) }), length };
}

/** @param {number} kind @param {Record<number, Value>} header the kind's own @param {readonly Bytes[]} content */
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
