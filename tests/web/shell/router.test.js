
import assert from "node:assert/strict";
import { test } from "node:test";

import { buildPath, findPage, matchPath } from "../../../web/shell/router.js";

const PAGES = [{ path: "/" }, { path: "/runs/{id}" }, { path: "/runs/{id}/step" }];

test("paths match segment by segment", () => {
  assert.deepEqual(matchPath("/runs/{id}/step", "/runs/3/step"), { id: "3" });
  assert.deepEqual(matchPath("/runs/{id}", "/runs/3/"), { id: "3" });
  assert.equal(matchPath("/runs/{id}", "/runs/3/step"), null);
  assert.equal(matchPath("/runs/{id}", "/ruins/3"), null);
});

test("pages are found, and unknown addresses are not", () => {
  assert.equal(findPage(PAGES, "/")?.page, PAGES[0]);
  assert.equal(findPage(PAGES, "/runs/7/step")?.page, PAGES[2]);
  assert.equal(findPage(PAGES, "/runs/7/nope"), null);
});

test("a broken escape is no match rather than an exception", () => {
  assert.equal(findPage(PAGES, "/runs/%E0%A4%A"), null);
});

test("parameters are escaped on the way back", () => {
  assert.equal(buildPath("/runs/{id}/step", { id: "a/b?c" }), "/runs/a%2Fb%3Fc/step");
});
