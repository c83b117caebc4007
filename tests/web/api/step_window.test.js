
import assert from "node:assert/strict";
import { test } from "node:test";

import { changedState, draggedWindow, followPatch, gripAt, panPatch, panned, parseState, patchOf, shownRange, windowOf, zoomPatch, zoomed } from "../../../web/api/url_state.js";

const RUN = { first_step: 100, last_step: 1099 };
const WHOLE = { start: 100, stop: 1100 };
const view = (/** @type {string} */ search) => parseState(search);

test("the window is what is shown, as far as the run has it", () => {
  assert.deepEqual(windowOf(view(""), RUN), WHOLE);
  assert.deepEqual(windowOf(view("?start=0&stop=5000"), RUN), WHOLE);
  assert.deepEqual(windowOf(view("?last=50"), RUN), { start: 1050, stop: 1100 });
  assert.deepEqual(windowOf(view(""), { first_step: null, last_step: null }), { start: 0, stop: 1 });
});

test("panning keeps the width and stops at the ends", () => {
  assert.deepEqual(panned({ start: 200, stop: 300 }, WHOLE, 50), { start: 250, stop: 350 });
  assert.deepEqual(panned({ start: 200, stop: 300 }, WHOLE, -5000), { start: 100, stop: 200 });
  assert.deepEqual(panned({ start: 200, stop: 300 }, WHOLE, 5000), { start: 1000, stop: 1100 });
  assert.deepEqual(panPatch(view("?start=200&stop=300"), RUN, 0.5), { start: 250, stop: 350 });
  assert.deepEqual(panPatch(view("?start=100&stop=300"), RUN, -0.5), {}, "there is nothing earlier");
  assert.deepEqual(panPatch(view("?start=200&stop=201"), RUN, 0.5), { start: 201, stop: 202 }, "by a step at the least");
});

test("zooming is about the middle, to two steps and to all", () => {
  assert.deepEqual(zoomed({ start: 200, stop: 300 }, WHOLE, 0.5), { start: 225, stop: 275 });
  assert.deepEqual(zoomed({ start: 200, stop: 202 }, WHOLE, 0.5), { start: 200, stop: 202 });
  assert.deepEqual(zoomPatch(view("?start=200&stop=202"), RUN, 0.5), {});
  assert.deepEqual(zoomPatch(view("?start=300&stop=900"), RUN, 2), { start: null, stop: null });
  assert.deepEqual(zoomed({ start: 100, stop: 110 }, WHOLE, 2), { start: 100, stop: 120 }, "not past the first step");
});

test("who follows the newest step goes on following when the width changes, and not when the place does", () => {
  assert.deepEqual(zoomPatch(view(""), RUN, 0.5), { last: 500 });
  assert.deepEqual(zoomPatch(view("?last=100"), RUN, 2), { last: 200 });
  assert.deepEqual(zoomPatch(view("?last=600"), RUN, 2), { last: null });
  assert.deepEqual(panPatch(view("?last=100"), RUN, -0.5), { start: 950, stop: 1050 });
});

test("following is switched on and off without a jump of the width", () => {
  for (const search of ["?start=200&stop=300", "?last=100", "?start=900", ""]) {
    const state = view(search);
    const width = (/** @type {import("../../../web/types.js").ViewState} */ of) => shownRange(of, RUN).stop - shownRange(of, RUN).start;
    const switched = changedState(state, followPatch(state, RUN));
    assert.equal(width(switched), width(state), search);
    assert.notEqual(switched.stop === null, state.stop === null, search);
  }
});

test("a press takes hold of an edge, of the window, or of nothing yet", () => {
  const window = { start: 300, stop: 600 }; // pixels 200 to 500 of 1000
  assert.deepEqual([195, 207, 350, 495, 508, 600, 20].map((x) => gripAt(x, 1000, window, WHOLE)), ["start", "start", "pan", "stop", "stop", "select", "select"]);
  assert.equal(gripAt(500, 1000, WHOLE, WHOLE), "select", "all steps cannot be moved");
  assert.equal(gripAt(3, 1000, WHOLE, WHOLE), "start");
  assert.equal(gripAt(202, 1000, { start: 300, stop: 302 }, WHOLE), "stop", "the nearer of two that are close");
});

test("a drag moves what was taken hold of", () => {
  const window = { start: 300, stop: 600 };
  assert.deepEqual(draggedWindow("pan", 0.3, 0.4, window, WHOLE), { start: 400, stop: 700 });
  assert.deepEqual(draggedWindow("start", 0.2, 0.1, window, WHOLE), { start: 200, stop: 600 });
  assert.deepEqual(draggedWindow("start", 0.2, 0.9, window, WHOLE), { start: 598, stop: 600 }, "not past the other edge");
  assert.deepEqual(draggedWindow("stop", 0.5, 3, window, WHOLE), { start: 300, stop: 1100 });
  assert.deepEqual(draggedWindow("select", 0.9, 0.8, window, WHOLE), { start: 900, stop: 1000 });
  assert.deepEqual(draggedWindow("select", -1, 0.1, window, WHOLE), { start: 100, stop: 200 });
  assert.deepEqual(draggedWindow("select", 0.5, 0.5, { start: 0, stop: 1 }, { start: 0, stop: 1 }), { start: 0, stop: 1 });
});

test("all steps need no edges in the address", () => {
  assert.deepEqual(patchOf(WHOLE, WHOLE), { start: null, stop: null });
  assert.deepEqual(patchOf({ start: 100, stop: 1099 }, WHOLE), { start: 100, stop: 1099 });
});
