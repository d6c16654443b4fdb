// Histograms, curves and maps of numbers: small charts on cards.

const CARD = { width: 260, height: 96, left: 4, right: 4, top: 6, bottom: 18 };

function near(value) {
  return Number(value.toPrecision(3)).toString();
}

function sized(shape) {
  return shape === null ? "" : shape.length ? shape.map((size) => (size === null ? "n" : size)).join("×") : "scalar";
}

// A figure, with its largest possible error if not all bytes were read.
function between([low, high] = [null, null]) {
  if (low === null || high === null) return "NaN";
  if (low === high) return figure(low);
  const [middle, half] = [(low + high) / 2, (high - low) / 2];
  if (half <= 5e-5 * Math.abs(middle)) return figure(middle);
  const known = middle ? Math.floor(Math.log10(Math.abs(middle) / half)) + 1 : 1; // significant digits
  return `${Number(middle.toPrecision(Math.min(4, Math.max(1, known))))} ± ${Number(half.toPrecision(1))}`;
}

function barsPath(histogram, place, height, outline) {
  let path = "";
  histogram.counts.forEach((count, n) => {
    const [left, right] = [place((histogram.first + n) * histogram.width), place((histogram.first + n + 1) * histogram.width)];
    const top = CARD.height - CARD.bottom - height(count, histogram);
    path += outline ? `${n ? "L" : "M"}${left.toFixed(1)},${top.toFixed(1)}H${right.toFixed(1)}` : `M${left.toFixed(1)},${CARD.height - CARD.bottom}V${top.toFixed(1)}H${(right - 0.6).toFixed(1)}V${CARD.height - CARD.bottom}Z`;
  });
  return path;
}

// One histogram as bars, and an optional second one as a line. Both show shares, since their sums may differ.
function drawHistogram(histograms, log, label) {
  const svg = shape("svg", { viewBox: `0 0 ${CARD.width} ${CARD.height}`, role: "img", "aria-label": label });
  const known = histograms.filter((histogram) => histogram && histogram.counts.length);
  if (!known.length) { shape("text", { x: 4, y: 40 }, svg, "no finite numbers"); return svg; }
  const low = Math.min(...known.map((h) => h.first * h.width)), high = Math.max(...known.map((h) => (h.first + h.counts.length) * h.width));
  const place = (value) => CARD.left + ((value - low) / (high - low)) * (CARD.width - CARD.left - CARD.right);
  const total = (h) => h.counts.reduce((a, b) => a + b, 0) * h.width;
  const level = (count, h) => (log ? Math.log1p(count) : count / total(h));
  const top = Math.max(...known.map((h) => Math.max(...h.counts.map((count) => level(count, h)))));
  const height = (count, h) => (top > 0 ? (level(count, h) / top) * (CARD.height - CARD.top - CARD.bottom) : 0);
  known.forEach((histogram, n) => shape("path", { d: barsPath(histogram, place, height, n > 0), class: n ? "bars second" : "bars" }, svg));
  shape("line", { x1: CARD.left, x2: CARD.width - CARD.right, y1: CARD.height - CARD.bottom, y2: CARD.height - CARD.bottom, class: "axis" }, svg);
  const ticks = low < 0 && high > 0 ? [low, 0, high] : [low, high];
  for (const tick of ticks) {
    const x = place(tick);
    if (tick === 0 && (x < 50 || x > CARD.width - 50)) continue;
    shape("text", { x, y: CARD.height - 5, "text-anchor": tick === low ? "start" : tick === high ? "end" : "middle" }, svg, near(tick));
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const value = low + (((event.clientX - box.left) * CARD.width / box.width - CARD.left) / (CARD.width - CARD.left - CARD.right)) * (high - low);
    const rows = known.map((h, n) => [known.length > 1 ? ["first", "second"][n] : "weights", String(h.counts[Math.floor(value / h.width) - h.first] ?? 0)]);
    const width = known[0].width, at = Math.floor(value / width) * width;
    showTip(`${near(at)} to ${near(at + width)}`, rows, event.clientX, event.clientY);
  });
  svg.addEventListener("pointerleave", hideTip);
  return svg;
}

function tensorCard(tensor, log, name = tensor.name) {
  const { histogram } = tensor;
  const constant = tensor.count > 0 && tensor.least[0] === tensor.greatest[1] && !tensor.nonfinite;
  const words = [make("h3", { textContent: name }),
    make("p", { textContent: `${sized(tensor.shape)} ${tensor.dtype}${tensor.stored !== null && tensor.stored !== undefined ? `, ${bytes(tensor.bytes)}, ${bytes(tensor.stored)} stored` : ""}` }),
    make("p", { textContent: constant ? `all are ${figure(tensor.least[0])}` : `mean ${between(tensor.mean)}, deviation ${between(tensor.deviation)}` })];
  const beyond = histogram.below + histogram.above;
  if (beyond) words.push(make("p", { textContent: `${beyond.toLocaleString("en")} beyond: from ${between(tensor.least)} to ${between(tensor.greatest)}` }));
  if (tensor.nonfinite) words.push(make("p", { className: "bad", textContent: `${tensor.nonfinite.toLocaleString("en")} not finite` }));
  return make("figure", { className: "card" }, ...words, ...(constant ? [] : [drawHistogram([histogram], log, `Histogram of ${name}`)]));
}

function drawMaps(maps) {
  const place = make("div", { className: "maps" });
  for (const { rows, columns, levels } of maps) {
    const canvas = make("canvas", { width: columns, height: rows, className: rows === 1 ? "strip" : "" });
    const data = Uint8Array.from(atob(levels), (letter) => letter.charCodeAt(0));
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    data.forEach((level, n) => image.data.set([level, level, Math.min(255, level + 24), 255], 4 * n));
    context.putImageData(image, 0, 0);
    place.append(canvas);
  }
  return place;
}

function drawCurve(name, { points, count }) {
  const svg = shape("svg", { viewBox: "0 0 300 150", role: "img" });
  const known = points.filter((point) => point[1] !== null);
  const card = make("figure", { className: "card" }, make("h3", { textContent: name }));
  if (!known.length) { card.append(make("p", { textContent: "never a finite number" })); return card; }
  const values = known.map((point) => point[1]), steps = points.map((point) => point[0]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const best = [known.find((point) => point[1] === low), known.find((point) => point[1] === high)];
  card.append(make("p", { textContent: `last ${figure(points.at(-1)[1])}, lowest ${figure(low)} at ${best[0][0]}, highest ${figure(high)} at ${best[1][0]}` }));
  if (points.length < 2) return card;
  const x = new Scale({ kind: "linear", low: steps[0], high: steps.at(-1) }), y = new Scale({ kind: "linear", low, high });
  const at = (point) => [44 + x.part(point[0]) * 248, 128 - y.part(point[1]) * 118];
  for (const tick of ticksOf(low, high, 4, false)) {
    const height = at([steps[0], tick])[1];
    shape("line", { x1: 44, x2: 292, y1: height, y2: height, class: "grid-line" }, svg);
    shape("text", { x: 40, y: height + 4, "text-anchor": "end" }, svg, word(tick));
  }
  for (const tick of ticksOf(steps[0], steps.at(-1), 5, false).filter(Number.isInteger)) shape("text", { x: at([tick, low])[0], y: 144, "text-anchor": "middle" }, svg, word(tick));
  shape("path", { d: pathOf(points.map((point) => (point[1] === null ? null : at(point)))), class: "curve" }, svg);
  const dot = shape("circle", { r: 3.4, class: "dot", visibility: "hidden" }, svg);
  svg.setAttribute("aria-label", `${name} over ${count} steps, from ${figure(values[0])} to ${figure(values.at(-1))}`);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), wanted = ((event.clientX - box.left) * 300) / box.width;
    const point = known.reduce((a, b) => (Math.abs(at(b)[0] - wanted) < Math.abs(at(a)[0] - wanted) ? b : a));
    const [cx, cy] = at(point);
    for (const [key, value] of Object.entries({ cx, cy, visibility: "visible" })) dot.setAttribute(key, value);
    showTip(name, [["step", point[0]], ["value", figure(point[1])]], event.clientX, event.clientY);
  });
  svg.addEventListener("pointerleave", () => { hideTip(); dot.setAttribute("visibility", "hidden"); });
  card.append(svg);
  return card;
}
