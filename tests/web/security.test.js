// What the front end promises of itself: one place for each dangerous or shared thing.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const WEB = fileURLToPath(new URL("../../web/", import.meta.url));
const FILES = readdirSync(WEB, { recursive: true }).map(String).filter((name) => name.endsWith(".js"));
/** Code without comments. @param {string} name */
const code = (name) => readFileSync(WEB + name, "utf8").replace(/\/\*[\s\S]*?\*\/|^\s*\/\/.*$/gm, "");
/** @param {RegExp} pattern */
const filesWith = (pattern) => FILES.filter((name) => pattern.test(code(name)));

test("text never becomes markup", () => {
  assert.deepEqual(filesWith(/innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function/), []);
});

test("one file fetches, one listens, one draws", () => {
  assert.deepEqual(filesWith(/\bfetch\(/), ["api/fetch.js"]);
  assert.deepEqual(filesWith(/new EventSource/), ["api/live.js"]);
  assert.deepEqual(filesWith(/\.Plotly\b/), ["charts/plotly.js"]);
});

test("the shell has no inline script, which the server's policy would refuse", () => {
  const shell = readFileSync(`${WEB}index.html`, "utf8");
  assert.doesNotMatch(shell, /<script(?![^>]*\bsrc=)[^>]*>|\son\w+=/);
});
