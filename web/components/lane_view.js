// Which steps the reader wants to see, as opposed to how far the run has come.

/** The same as long as nobody chooses other steps, though there are ever more of them. @param {import("./lane.js").View} view @param {number} [columns] */
export const viewKey = ({ state: { start, stop, last } }, columns = 0) => JSON.stringify([start, stop, last, columns]);
