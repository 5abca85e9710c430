// Draws a lineage as a graph from left to right: one column per generation.

import { h, svg } from "./dom.js";

const WIDE = 1060, ACROSS = [62, 116], DOWN = 46, EDGE = 26;

// nodes: [{id, parent, label, note, best, href}]; a parent that is not among them counts as none.
export function lineage(nodes, says) {
  if (!nodes.length) return null;
  const by = new Map(nodes.map(one => [one.id, { ...one, children: [] }])), roots = [];
  for (const one of by.values()) (by.get(one.parent)?.children ?? roots).push(one);
  let row = 0, deepest = 0;
  const lay = (one, depth) => { // the first child continues the line, others branch off below
    deepest = Math.max(deepest, one.depth = depth);
    one.row = row;
    one.children.forEach((child, k) => { if (k) row++; lay(child, depth + 1); });
  };
  roots.forEach((one, k) => { if (k) row++; lay(one, 0); });
  const across = Math.max(ACROSS[0], Math.min(ACROSS[1], (WIDE - 2 * EDGE) / Math.max(1, deepest)));
  const at = one => [EDGE + one.depth * across, EDGE + one.row * DOWN];
  const edges = [...by.values()].filter(one => by.has(one.parent)).map(one => {
    const [x0, y0] = at(by.get(one.parent)), [x1, y1] = at(one), mid = (x0 + x1) / 2;
    return svg("path", { d: `M${x0} ${y0}C${mid} ${y0} ${mid} ${y1} ${x1} ${y1}` });
  });
  const dots = [...by.values()].map(one => {
    const [x, y] = at(one);
    return svg("g", { class: one.best ? "best" : "" }, svg("title", {}, one.note ?? one.id),
      svg("circle", { cx: x, cy: y, r: 6 }), svg("text", { x, y: y + 21, "text-anchor": "middle" }, one.label));
  });
  const width = EDGE * 2 + deepest * across + 30, height = EDGE * 2 + row * DOWN + 4;
  return h("div", { class: "lineage", tabindex: 0 },
    svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": says }, edges, dots));
}
