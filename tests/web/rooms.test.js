// Where modules live: which rooms of web/ may import which, types included, that no imports go in a circle, and how full a folder gets.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join, posix } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const WEB = fileURLToPath(new URL("../../web/", import.meta.url));
/** A room may import itself and any room after it. */
const ROOMS = ["shell", "pages", "widgets", "charts", "api", "format"];
const MOST_ENTRIES = 13;

const ENTRIES = readdirSync(WEB, { recursive: true }).map((name) => String(name).replaceAll("\\", "/"));
const MODULES = ENTRIES.filter((name) => name.endsWith(".js"));
/** @param {string} name */
const textOf = (name) => readFileSync(join(WEB, name), "utf8");
/** @param {string} name */
const code = (name) => textOf(name).replace(/\/\*[\s\S]*?\*\//g, "");
/** What a text imports, at once or later. @param {string} name of its module @param {string} text @returns {string[]} */
const importsIn = (name, text) => [...text.matchAll(/^(?:import|export)\b[^;"]*?from "(\.[^"]+)";|\bimport\("(\.[^"]+)"\)/gm)].map((match) => posix.join(posix.dirname(name), match[1] ?? match[2]));
const IMPORTS = new Map(MODULES.map((name) => [name, importsIn(name, code(name))]));
/** With those of types, in comments. */
const WITH_TYPES = MODULES.flatMap((name) => importsIn(name, textOf(name)).map((other) => ({ name, other })));
const ALL = [...IMPORTS].flatMap(([name, imported]) => imported.map((other) => ({ name, other })));
/** @param {string} name */
const roomOf = (name) => name.split("/")[0];
/** @param {string} name */
const folderOf = (name) => name.split("/")[1];

test("every module is in a room, and what it imports is there", () => {
  assert.deepEqual(MODULES.filter((name) => name !== "types.js" && !ROOMS.includes(roomOf(name))), []);
  assert.deepEqual(ALL.filter(({ other }) => !IMPORTS.has(other)), []);
  assert.ok(ALL.length > 300);
});

test("imports go one way, and what a type is of as well; types.js is below all rooms", () => {
  const order = [...ROOMS, "types.js"];
  assert.ok(WITH_TYPES.length > ALL.length + 100);
  assert.deepEqual(WITH_TYPES.filter(({ other }) => !MODULES.includes(other)), []);
  assert.deepEqual(WITH_TYPES.filter(({ name, other }) => order.indexOf(roomOf(other)) < order.indexOf(roomOf(name))), []);
});

test("pages know nothing of each other: the list of pages alone knows all", () => {
  const across = WITH_TYPES.filter(({ name, other }) => roomOf(name) === "pages" && roomOf(other) === "pages" && folderOf(name) !== folderOf(other));
  assert.deepEqual(across.filter(({ name }) => name !== "pages/index.js"), []);
  const listed = new Set(across.map(({ other }) => folderOf(other)));
  assert.equal(listed.size, readdirSync(join(WEB, "pages")).length - 1);
});

test("no imports go in a circle", () => {
  /** @type {Set<string>} */
  const done = new Set();
  /** @param {string} name @param {readonly string[]} way */
  function follow(name, way) {
    assert.ok(!way.includes(name), [...way, name].join(" -> "));
    if (done.has(name)) return;
    for (const other of IMPORTS.get(name) ?? []) follow(other, [...way, name]);
    done.add(name);
  }
  for (const name of MODULES) follow(name, []);
});

test("a folder has few entries", () => {
  const folders = [...new Set(ENTRIES.map((name) => posix.dirname(name)))];
  assert.ok(folders.includes(".") && folders.length > ROOMS.length);
  assert.deepEqual(folders.filter((folder) => readdirSync(join(WEB, folder)).length > MOST_ENTRIES), []);
});

test("every module says first what it is for", () => {
  assert.deepEqual(MODULES.filter((name) => !/^\/\/ .*\S\n/.test(readFileSync(join(WEB, name), "utf8"))), []);
});
