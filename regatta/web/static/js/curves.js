// Learning curves: a line for each configuration, its best value marked, and × for values that are not numbers.

const SIZE = { width: 720, height: 400, left: 56, right: 16, top: 14, bottom: 38 };

class Curves {
  constructor(place, data, colours, hooks) {
    Object.assign(this, { place, data, colours, hooks });
    const values = data.configs.flatMap((config) => config.series.map((point) => point[1])).filter((v) => v !== null);
    this.low = values.reduce((least, v) => Math.min(least, v), Infinity);
    this.high = values.reduce((most, v) => Math.max(most, v), -Infinity);
    this.canLog = this.low > 0;
    this.log = this.canLog && this.high / this.low > 50;
    this.groups = [];
    this.draw();
  }

  x(epoch) {
    const { left, right, width } = SIZE;
    return left + (this.last > this.first ? (epoch - this.first) / (this.last - this.first) : 0.5) * (width - left - right);
  }

  y(value) {
    const scale = this.log ? Math.log : (v) => v;
    const [low, high] = [scale(this.low), scale(this.high)];
    const part = high > low ? (scale(value) - low) / (high - low) : 0.5;
    return SIZE.height - SIZE.bottom - (0.03 + 0.94 * part) * (SIZE.height - SIZE.top - SIZE.bottom);
  }

  draw() {
    const epochs = this.data.configs.flatMap((config) => config.series.map((point) => point[0]));
    this.place.replaceChildren();
    if (!epochs.length) {
      this.place.textContent = "No epoch has been reported yet.";
      return;
    }
    this.first = epochs.reduce((least, e) => Math.min(least, e));
    this.last = epochs.reduce((most, e) => Math.max(most, e));
    const svg = shape("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-labelledby": "curves-title" }, this.place);
    if (this.low <= this.high) this.drawAxes(svg);
    this.groups = this.data.configs.map((config, number) => this.drawConfig(svg, config, number));
    this.drawBest(svg);
  }

  drawAxes(svg) {
    const { left, right, width, height, bottom } = SIZE;
    for (const value of this.ticks()) {
      const y = this.y(value);
      shape("line", { x1: left, x2: width - right, y1: y, y2: y, class: "axis" }, svg);
      shape("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, svg, Number(value.toPrecision(3)));
    }
    const step = Math.max(1, Math.ceil((this.last - this.first) / 12));
    for (let epoch = this.first; epoch <= this.last; epoch += step) {
      shape("text", { x: this.x(epoch), y: height - bottom + 17, "text-anchor": "middle" }, svg, epoch);
    }
    shape("text", { x: width - right, y: height - 4, "text-anchor": "end" }, svg, "epoch");
  }

  ticks() {
    if (this.log) return this.logTicks();
    if (this.high <= this.low) return [this.low];
    const step = niceStep(this.high - this.low, 6);
    const ticks = [];
    for (let n = Math.ceil(this.low / step); n * step <= this.high; n++) ticks.push(n * step);
    return ticks;
  }

  logTicks() {
    const ticks = [];
    for (let power = Math.floor(Math.log10(this.low)); 10 ** power <= this.high; power++) {
      for (const factor of [1, 2, 5]) ticks.push(factor * 10 ** power);
    }
    const inside = ticks.filter((tick) => tick >= this.low * 0.999 && tick <= this.high * 1.001);
    return inside.length <= 9 ? inside : inside.filter((tick) => Math.abs(Math.log10(tick) % 1) < 1e-9);
  }

  drawConfig(svg, config, number) {
    const group = shape("g", { class: "config" }, svg);
    const colour = this.colours[number];
    for (const points of runsOfNumbers(config.series)) {
      const path = points.map(([epoch, value]) => `${this.x(epoch).toFixed(1)},${this.y(value).toFixed(1)}`).join(" ");
      shape("polyline", { points: path, style: `stroke: ${colour}` }, group);
      shape("polyline", { points: path, class: "hit" }, group);
      if (points.length === 1) this.dot(group, points[0], colour, 2);
    }
    if (config.best) this.dot(group, config.best, colour, 3.5);
    for (const [epoch, value] of config.series) {
      if (value === null) this.cross(group, epoch, colour, config);
    }
    group.addEventListener("pointerenter", () => this.hooks.light(number));
    group.addEventListener("pointerleave", () => this.hooks.light(null));
    return group;
  }

  dot(group, [epoch, value], colour, radius) {
    shape("circle", { cx: this.x(epoch), cy: this.y(value), r: radius, style: `fill: ${colour}` }, group);
  }

  cross(group, epoch, colour, config) {
    const mark = shape("text", { x: this.x(epoch), y: SIZE.height - SIZE.bottom - 1, "text-anchor": "middle", style: `fill: ${colour}; font-weight: 700` }, group, "×");
    shape("title", {}, mark, `${config.id}: not a number at epoch ${epoch}`);
  }

  drawBest(svg) {
    const number = this.data.configs.findIndex((config) => config.best);
    if (number < 0) return;
    const [epoch, value] = this.data.configs[number].best;
    const [x, y] = [this.x(epoch), this.y(value)];
    shape("circle", { cx: x, cy: y, r: 7, fill: "none", stroke: this.colours[number], "stroke-width": 2 }, svg);
    const leftwards = x > SIZE.width / 2;
    const above = y > SIZE.height / 2;
    shape("text", { x: x + (leftwards ? -12 : 12), y: y + (above ? -10 : 18), "text-anchor": leftwards ? "end" : "start", class: "best-label" },
      svg, `best ${Number(value.toPrecision(4))} at epoch ${epoch}`);
  }

  light(number) {
    this.groups.forEach((group, other) => {
      group.classList.toggle("dim", number !== null && number !== other);
      group.classList.toggle("lit", number === other);
    });
  }
}

function runsOfNumbers(series) {
  const runs = [[]];
  for (const point of series) {
    if (point[1] === null) runs.push([]); else runs.at(-1).push(point);
  }
  return runs.filter((points) => points.length);
}
