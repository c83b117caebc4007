
import assert from "node:assert/strict";
import { test } from "node:test";

import * as format from "../../../web/format/numbers.js";

test("scales are powers of two where they are", () => {
  assert.equal(format.scale(65536), "2¹⁶");
  assert.equal(format.scale(1), "2⁰");
  assert.equal(format.scale(0.5), "2⁻¹");
  assert.equal(format.scale(1000), "1.00e3");
  assert.equal(format.scale(null), "none");
});

test("magnitudes are short powers of ten, and never 0 when not measured", () => {
  assert.equal(format.magnitude(62700), "6.27e4");
  assert.equal(format.magnitude(6.1e-5), "6.10e-5");
  assert.equal(format.magnitude(0), "0");
  assert.equal(format.magnitude(null), "not measured");
  assert.equal(format.magnitude(undefined), "not measured");
});

test("bits keep the digits that matter near the limit", () => {
  assert.equal(format.bits(5.13), "5.1 bits");
  assert.equal(format.bits(0.06), "0.06 bits");
  assert.equal(format.bits(0), "0.0 bits");
  assert.equal(format.bits(null), "not measured");
});

test("readings, counts and seconds", () => {
  assert.equal(format.reading(2.30999), "2.31");
  assert.equal(format.reading(1234567), "1.23e6");
  assert.equal(format.count(100000), "100,000");
  assert.equal(format.seconds(0.212), "212 ms");
  assert.equal(format.seconds(1.5), "1.5 s");
  assert.equal(format.seconds(0.0000005), "1 us");
});

test("ages", () => {
  const second = 1e9;
  assert.equal(format.age(40 * second), "40 s ago");
  assert.equal(format.age(14 * 60 * second), "14 min ago");
  assert.equal(format.age(3 * 3600 * second), "3 h ago");
  assert.equal(format.age(-second), "0 s ago", "a clock ahead of ours is not the future");
});

test("ranks", () => {
  assert.equal(format.rankList([3]), "rank 3");
  assert.equal(format.rankList([7, 1, 8, 9, 3]), "ranks 1, 3 and 7-9");
  assert.equal(format.rankList([1, 2]), "ranks 1 and 2");
  assert.equal(format.rankName("all"), "all ranks");
  assert.equal(format.rankName(5), "rank 5");
});

test("ranges of steps name their last step", () => {
  assert.equal(format.steps({ start: 360, stop: 361 }), "step 360");
  assert.equal(format.steps({ start: 64, stop: 128 }), "steps 64-127");
});

test("a name of any length leaves room for the rest", () => {
  assert.equal(format.clip("blocks.3.ff.wo"), "blocks.3.ff.wo");
  assert.equal(format.clip("abcdefgh", 4), "ab … gh");
});

test("a long name keeps its end", () => {
  assert.equal(format.shorten("blocks.3.ff.wo", 20), "blocks.3.ff.wo");
  assert.equal(format.shorten("blocks.3.ff.wo", 13), "b.3.ff.wo");
  assert.equal(format.shorten("blocks.3.ff.wo", 8), "b.3.f.wo");
  assert.equal(format.shorten("blocks.3.ff.wo", 6), "….f.wo");
  assert.equal(format.shorten("decoder.block.0.layer.1.DenseReluDense.wo output", 30), "d.b.0.l.1.D.wo output");
  assert.equal(format.shorten("node12.cluster.local rank 3", 22), "n12.c.local rank 3");
  assert.equal(format.shorten("a name without dots that is long", 10), "…t is long");
});
