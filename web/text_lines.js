// A body that comes in parts, as lines of text. Pure.

/**
 * Tells each line as soon as it is whole. What follows the last line break is none. What `told` throws ends it.
 * @param {ReadableStream<Uint8Array>} body @param {(line: string) => void} told
 */
export async function eachLine(body, told) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  /** @type {string[]} */
  let begun = [];
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const [rest, ...more] = decoder.decode(part.value, { stream: true }).split("\n");
      begun.push(rest);
      for (const next of more) {
        told(begun.join(""));
        begun = [next];
      }
    }
  } catch (error) {
    reader.cancel().catch(() => {}); // or it would keep its connection, and the server at work
    throw error;
  }
}
