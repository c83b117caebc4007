// The command that writes a run into one file, for a POSIX shell. Pure.

import { fileName } from "./figure_files.js";

/** Longer names are not read, let alone typed: the run's number is another name of it. */
const MOST_LETTERS = 200;
/** What a terminal may obey as it is pasted (quotes do not help), what is not seen or turns the line around, what begins an option, and what may be another run's number. */
const HAS_NO_PLACE = /[\p{C}\p{Zl}\p{Zp}]|^-|^\d*$/u;
/** A word that a shell takes as it is. */
const PLAIN = /^[\w@%+=:,./-]+$/;

/** One word of a POSIX shell, whatever is in it. @param {string} text */
export const quoted = (text) => (PLAIN.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

/** What the run is called in a shell: by its name where that can be read and pasted. @param {{id: number, name: string}} run */
const called = ({ id, name }) => (name.length > MOST_LETTERS || HAS_NO_PLACE.test(name) ? String(id) : name);

/** @param {{id: number, name: string}} run @param {string} address of the server as the reader reaches it */
export function reportCommand(run, address) {
  const words = ["rangewatch", "export", called(run), `${fileName("run", run.id, "report")}.html`, "--url", address];
  return words.map(quoted).join(" ");
}
