// Squarified treemap (Bruls, Huizing and van Wijk, 2000): areas in proportion, as square as they will go. Pure.

/// Divides the rectangle {x, y, width, height} among `items`, largest first. `weight` gives the size of one. Returns
/// [{item, x, y, width, height}].
export function squarify(items, weight, area) {
  const ordered = items.filter((item) => weight(item) > 0).sort((a, b) => weight(b) - weight(a));
  const total = ordered.reduce((sum, item) => sum + weight(item), 0);
  if (!total || area.width <= 0 || area.height <= 0) return [];
  const scale = (area.width * area.height) / total;
  const placed = [];
  let left = { ...area };
  let row = [];
  let rowArea = 0;
  for (const item of ordered) {
    const size = weight(item) * scale;
    const side = Math.min(left.width, left.height);
    if (row.length && worst(row, rowArea, side) < worst([...row, { size }], rowArea + size, side)) {
      left = lay(row, rowArea, left, placed);
      row = [];
      rowArea = 0;
    }
    row.push({ item, size });
    rowArea += size;
  }
  lay(row, rowArea, left, placed);
  return placed;
}

/// How far from a square the worst of a row is, laid along `side`.
function worst(row, rowArea, side) {
  const thickness = rowArea / side;
  return Math.max(
    ...row.map(({ size }) => {
      const ratio = size / thickness / thickness;
      return Math.max(ratio, 1 / ratio);
    }),
  );
}

/// Places a row along the shorter side of what is left, and returns what remains.
function lay(row, rowArea, left, placed) {
  const upright = left.width >= left.height;
  const side = upright ? left.height : left.width;
  const thickness = side > 0 ? rowArea / side : 0;
  let along = 0;
  for (const { item, size } of row) {
    const length = thickness > 0 ? size / thickness : 0;
    placed.push(
      upright
        ? { item, x: left.x, y: left.y + along, width: thickness, height: length }
        : { item, x: left.x + along, y: left.y, width: length, height: thickness },
    );
    along += length;
  }
  return upright
    ? { x: left.x + thickness, y: left.y, width: left.width - thickness, height: left.height }
    : { x: left.x, y: left.y + thickness, width: left.width, height: left.height - thickness };
}
