// The bytes of Parquet files against the format's own words; tests/browser/test_parquet.py has other programs read them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { i32, i64, list, numberColumn, parquetParts, runs, struct, text, textColumn, varint } from "../../web/charts/saving/parquet.js";

/** @param {readonly (string | number | null)[]} values @param {ReturnType<typeof numberColumn>} column */
function encoded(values, column) {
  values.forEach(column.put);
  const { levels, values: bytes, dictionary } = column.encoded();
  return { levels: [...levels], values: bytes, dictionary: dictionary && { count: dictionary.count, text: Buffer.from(dictionary.bytes).toString("latin1") } };
}

test("whole numbers: seven bits a byte, past 32 bits too", () => {
  assert.deepEqual([0, 127, 128, 300].map(varint), [[0], [127], [128, 1], [172, 2]]);
  assert.deepEqual(varint(2 ** 40), [128, 128, 128, 128, 128, 32]);
});

test("a struct: how far to the next field, its type, its value", () => {
  assert.deepEqual(struct({ 1: i32(3), 4: text("é"), 6: i64(64) }).bytes, [0x15, 6, 0x38, 2, 0xc3, 0xa9, 0x26, 128, 1, 0]);
});

test("a list: short ones have their length in the first byte", () => {
  assert.deepEqual(list([i32(1), i32(2)]).bytes, [0x25, 2, 4]);
  assert.deepEqual(list([]).bytes, [0x0c]);
  assert.deepEqual(list(Array.from({ length: 200 }, () => i32(0))).bytes.slice(0, 4), [0xf5, 200, 1, 0]);
});

test("runs: twice the length, then the value in as many bytes as its bits need", () => {
  assert.deepEqual(runs([1, 1, 1, 0], 1), [6, 1, 2, 0]);
  assert.deepEqual(runs([256, 256], 9), [4, 0, 1]);
  assert.deepEqual(runs([], 1), []);
});

test("numbers are doubles, and what is not finite is null", () => {
  const { levels, values } = encoded([1.5, null, NaN, Infinity, -0], numberColumn("x"));
  assert.deepEqual(levels, [6, 0, 0, 0, 2, 1, 6, 0, 2, 1]);
  assert.deepEqual([...new Float64Array(values.buffer)], [1.5, -0]);
});

test("text is kept once; empty text is text, and null is null", () => {
  const { levels, values, dictionary } = encoded(["a", "", "a", null, "b"], textColumn());
  assert.deepEqual(levels, [6, 0, 0, 0, 6, 1, 2, 0, 2, 1]);
  assert.deepEqual([...values], [2, 2, 0, 2, 1, 2, 0, 2, 2]);
  assert.deepEqual(dictionary, { count: 3, text: "\u0001\0\0\0a\0\0\0\0\u0001\0\0\0b" });
});

test("text among numbers is refused, not lost", () => {
  assert.throws(() => parquetParts({ columns: ["x"], textColumns: [], rows: [["late"]] }), /x holds numbers, not "late"/);
});

test("a file begins and ends with its mark, and says before the end how long its footer is", () => {
  const file = Buffer.concat(parquetParts({ columns: ["name", "x"], textColumns: ["name"], rows: [["a", 1], [null, null]] }));
  assert.deepEqual([file.subarray(0, 4), file.subarray(-4)].map(String), ["PAR1", "PAR1"]);
  const footer = file.subarray(-8 - file.readUInt32LE(file.length - 8), -8);
  assert.deepEqual([...footer.subarray(0, 2)], [0x15, 2], "version 1");
  assert.equal(footer.at(-1), 0, "the end of a struct");
  assert.match(footer.toString("latin1"), /schema.*name.*x.*rangewatch/s);
});
