
import assert from "node:assert/strict";
import { test } from "node:test";

import { bandwidth, bytes, bytesOf, columnName, percent, quantity, time } from "../../../web/format/units.js";

test("what is not known is n/a, and 0 is 0", () => {
  for (const text of [bytes, bandwidth, time, percent]) {
    assert.equal(text(null), "n/a");
    assert.equal(text(undefined), "n/a");
    assert.equal(text(NaN), "n/a");
  }
  assert.equal(quantity("power_w", null), "n/a");
  assert.equal(bytes(0), "0 B");
  assert.equal(time(0), "0 ms");
  assert.equal(percent(0), "0 %");
});

test("each quantity has its unit", () => {
  assert.equal(bytes(1048576), "1 MiB");
  assert.equal(bytes(85899345920), "80 GiB");
  assert.equal(bandwidth(2.1e11), "210 GB/s");
  assert.equal(bytesOf(2 ** 30, 2 ** 32), "1 GiB of 4 GiB");
  assert.equal(bytesOf(2 ** 30, null), "1 GiB");
  assert.deepEqual(
    ["power_w", "sm_clock_mhz", "temperature_c", "utilization_gpu_percent", "violation_thermal_ns", "pcie_sent_bytes_per_s", "pcie_replays"].map((name) => quantity(name, 1234)),
    ["1234 W", "1234 MHz", "1234 °C", "1230 %", "1 us", "1.23 kB/s", "1,234"],
  );
});

test("a column's name leaves its unit to the value", () => {
  assert.equal(columnName("sm_clock_mhz"), "SM clock");
  assert.equal(columnName("ecc_uncorrected_volatile"), "ECC uncorrected volatile");
  assert.equal(columnName("network_sent_bytes_per_s"), "Network sent");
});
