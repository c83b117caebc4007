
import assert from "node:assert/strict";
import { test } from "node:test";

import { columnAxis, markName, marksOf, placed, stepAxis, timeAxis } from "../../../web/charts/alerts/alert_marks.js";

const SECOND = 1e9;
const WIDTH = 1000; // the axis begins at 172 and ends 12 before: 816 pixels

const alert = (/** @type {number} */ id, /** @type {number | null} */ step, /** @type {string} */ severity = "warning", /** @type {object} */ more = {}) => /** @type {any} */ ({
  id, opened_ns: 0, resolved_ns: null, finding: { severity, step, summary: `what ${id} says` }, ...more,
});
const OVER = { resolved_ns: 5 };
const axis = (/** @type {number} */ start = 0, /** @type {number} */ stop = 816) => stepAxis({ start, stop }, WIDTH);
const ids = (/** @type {import("../../../web/charts/alerts/alert_marks.js").Mark[]} */ marks) => marks.map(({ alerts }) => alerts.map(({ id }) => id));

test("a mark stands where its step's cell is, within the shown steps", () => {
  const [mark, ...others] = marksOf([alert(1, 99), alert(2, 100), alert(3, 199), alert(4, 200)], axis(100, 200));
  assert.equal(mark.place, 100);
  assert.equal(mark.x, 172 + 816 / 200);
  assert.deepEqual(ids(others), [[3]]);
});

test("an alert of no step has no place, which is not the same as out of sight", () => {
  const alerts = [alert(1, null), alert(2, 900)];
  assert.deepEqual(placed(alerts, axis()).map(({ id }) => id), [2]);
  assert.deepEqual(marksOf(alerts, axis()), []);
});

test("a lone mark needs 24 pixels, one with a count 40", () => {
  assert.deepEqual(ids(marksOf([alert(1, 0), alert(2, 24)], axis())), [[1], [2]]);
  assert.deepEqual(ids(marksOf([alert(1, 0), alert(2, 23), alert(3, 39), alert(4, 40)], axis())), [[1, 2, 3], [4]]);
});

test("zooming in tells them apart", () => {
  const alerts = Array.from({ length: 100 }, (_, i) => alert(i, 400 + (i % 5)));
  assert.deepEqual(marksOf(alerts, axis(0, 100_000)).map((mark) => mark.alerts.length), [100]);
  assert.deepEqual(marksOf(alerts, axis(400, 405)).map((mark) => mark.alerts.length), [20, 20, 20, 20, 20]);
});

test("of one mark what stands goes before what is over, then the graver, then the earlier", () => {
  const alerts = [alert(1, 10, "critical", OVER), alert(2, 11, "info"), alert(3, 12, "critical"), alert(4, 9, "critical"), alert(5, 10, "warning")];
  const [mark] = marksOf(alerts, axis());
  assert.deepEqual(mark.alerts.map(({ id }) => id), [4, 3, 5, 2, 1]);
  assert.deepEqual([mark.key, mark.place], [4, 9]);
});

test("a mark keeps its key while later and graver ones join it", () => {
  const before = marksOf([alert(7, 10, "info")], axis());
  const after = marksOf([alert(8, 12, "critical"), alert(7, 10, "info")], axis());
  assert.equal(after[0].key, before[0].key);
  assert.equal(after[0].alerts[0].id, 8);
});

test("a mark reads as what it stands for", () => {
  const name = (/** @type {any[]} */ ...alerts) => markName(marksOf(alerts, axis(0, 2000))[0], axis(0, 2000));
  assert.equal(name(alert(1, 1042, "critical")), "Critical, step 1,042: what 1 says");
  assert.equal(name(alert(1, 3, "info", OVER)), "Info, resolved, step 3: what 1 says");
  assert.equal(name(alert(1, 3), alert(2, 4, "critical")), "2 alerts. Critical, step 4: what 2 says");
  assert.ok(name({ ...alert(1, 3), finding: { severity: "info", step: 3, summary: "x".repeat(5000) } }).length < 300);
});

test("over the time an alert stands when it was raised", () => {
  const origin = 1_790_000_000 * SECOND;
  const time = timeAxis({ start: 0, stop: 600 }, origin, WIDTH);
  const raised = (/** @type {number} */ id, /** @type {number} */ second) => alert(id, null, "info", { opened_ns: origin + second * SECOND });
  const marks = marksOf([raised(1, -2), raised(2, 300), raised(3, 700)], time);
  assert.deepEqual(ids(marks), [[2]]);
  assert.equal(marks[0].place, 300);
  assert.match(time.text(raised(2, 300)), /^raised at \d\d:\d\d:\d\d$/);
});

test("over columns an alert stands in its step's, or on the border where its step has none", () => {
  const columns = columnAxis([10, 11, 14, 15], { left: 84, width: 400 });
  const at = (/** @type {number | null} */ step) => columns.placeOf(alert(1, step));
  assert.deepEqual([10, 14, 12, 15].map(at), [0.5, 2.5, 2, 3.5]);
  assert.equal(columns.pixelOf(0.5), 84 + 50);
  assert.deepEqual(marksOf([alert(1, 9), alert(2, 16), alert(3, 11)], columns).map(({ key }) => key), [3]);
  assert.equal(at(null), null);
  assert.deepEqual(marksOf([alert(1, 9)], columnAxis([], { left: 84, width: 400 })), []);
});
