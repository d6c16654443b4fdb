// Shared by all pages: elements, formatted numbers, steps of an axis.

const $ = (id) => document.getElementById(id);

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

// Formatted numbers, as on the command line

function seconds(value) {
  if (value < 0.0995) return `${(value * 1e3).toFixed(value < 0.0005 ? 1 : 0)} ms`;
  if (value < 99.5) return `${value.toFixed(value < 0.995 ? 2 : 1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 999.5 && power < units.length - 1) { value /= 1000; power++; }
  return `${value.toFixed(power === 0 || value >= 9.95 ? 0 : 1)} ${units[power]}`;
}

function figure(value) {
  return value === null || value === undefined ? "NaN" : String(Number(value.toPrecision(4)));
}

function word(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
}

function varyingNames(configs) {
  const names = [...new Set(configs.flatMap((config) => Object.keys(config.values)))];
  const differs = (name) => new Set(configs.map((config) => JSON.stringify(config.values[name]))).size > 1;
  return [names.filter(differs), names.filter((name) => !differs(name))];
}

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes, parent, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
}

function niceStep(span, count) {
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}
