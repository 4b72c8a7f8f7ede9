// Draws the figures in the page's colours, as wide as their boxes.
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)").matches;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const PAGE = 640;
let paper = 0; // width of a figure while the page is printed

// A long name in several lines, broken between its words.
function folded(name, chars) {
  const lines = [""];
  for (const word of name.split(" ")) {
    const last = lines[lines.length - 1];
    if (last && last.length + 1 + word.length > chars) lines.push(word);
    else lines[lines.length - 1] = last ? last + " " + word : word;
  }
  return lines.join("<br>");
}

function traces(figure, chars, ink) {
  return figure.data.map((trace) => {
    const out = { ...trace };
    for (const part of ["line", "marker", "error_x", "error_y"]) {
      if (trace[part] && trace[part].color === null) out[part] = { ...trace[part], color: ink };
    }
    if (trace.name) out.name = folded(trace.name, chars);
    return out;
  });
}

// Labels at the ends of bars, or to the right of the plot; there, a line leads to each from what it names.
function annotations(labels, height, size) {
  return labels.map((label) => {
    const at = label.row === undefined
      ? { yref: "paper", y: label.from, ax: 14, ay: (label.from - label.to) * height, showarrow: true, arrowhead: 0, arrowwidth: 1.5, arrowcolor: label.colour, standoff: 0 }
      : { yref: "y", y: label.row, xshift: 8, showarrow: false };
    if (at.arrowcolor === null) at.arrowcolor = colour("--ink");
    const side = label.at === undefined ? { xref: "paper", x: 1 } : { xref: "x", x: label.at };
    return { ...at, ...side, xanchor: "left", yanchor: "middle", align: "left", text: label.text, font: { size } };
  });
}

// Every second tick, where there are more than a phone has room for.
function fewer(axis) {
  if (!axis.tickvals) return { nticks: 5 };
  const kept = (_, place) => axis.tickvals.length <= 4 || place % 2 === 0;
  return { tickvals: axis.tickvals.filter(kept), ticktext: axis.ticktext.filter(kept) };
}

function widest(texts, size) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return Math.max(0, ...texts.flatMap((text) => text.split("<br>")).map((line) => pen.measureText(line).width));
}

function draw(figure) {
  const box = document.getElementById(figure.name);
  const width = paper || box.clientWidth;
  if (!width) return; // folded
  const narrow = width < 480;
  const size = narrow ? 11 : 12.5;
  const ink = colour("--ink");
  const grid = colour("--line");
  const data = traces(figure, Math.floor((width - 60) / (0.58 * size)), ink);
  const margin = { l: 48, r: 26 + widest(figure.labels.map((label) => label.text), size) };

  const rows = figure.layout.yaxis.type === "category" ? [...new Set(data.flatMap((trace) => trace.y))] : [];
  const lines = Math.max(1, ...rows.map((row) => row.split("<br>").length));
  const top = touch || paper ? 12 : 32; // room for the buttons that come with a mouse
  const bars = data.some((trace) => trace.type === "bar");
  const height = rows.length ? 20 + Math.max(bars ? 36 : 52, 1.4 * size * lines) * rows.length : Math.max(narrow ? 240 : 320, 1.4 * size * figure.lines);
  const font = { family: getComputedStyle(document.body).fontFamily, size, color: ink };
  const axis = { gridcolor: grid, linecolor: grid, tickcolor: grid, ticks: "outside", ticklen: 4, showline: true };
  const { gridcolor, ...bare } = axis;
  Plotly.react(box, data, {
    width,
    height: height + top + 52,
    margin: { ...margin, t: top, b: 52 },
    font,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { font: { ...font, size: 12, color: ink }, bgcolor: colour("--paper"), bordercolor: grid, align: "left" },
    hovermode: "closest",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--dim"), activecolor: ink },
    dragmode: touch ? false : "zoom",
    showlegend: false,
    annotations: annotations(figure.labels, height, size),
    xaxis: { ...axis, ...figure.layout.xaxis, ...(narrow ? fewer(figure.layout.xaxis) : {}), fixedrange: touch },
    yaxis: { ...(bars ? bare : axis), ...figure.layout.yaxis, showgrid: !bars, fixedrange: touch },
  }, { displaylogo: false, responsive: false, displayModeBar: touch ? false : "hover", modeBarButtonsToRemove: ["lasso2d", "select2d"] });
}

function drawAll() {
  figures.forEach(draw);
}

let width = document.documentElement.clientWidth;
let waiting;
addEventListener("resize", () => {
  if (document.documentElement.clientWidth === width) return; // a phone's bars come and go
  width = document.documentElement.clientWidth;
  clearTimeout(waiting);
  waiting = setTimeout(drawAll, 100);
});
dark.addEventListener("change", drawAll);
for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", drawAll);
// On paper: black on white, as wide as a page.
addEventListener("beforeprint", () => {
  paper = PAGE;
  document.documentElement.classList.add("paper");
  drawAll();
});
addEventListener("afterprint", () => {
  paper = 0;
  document.documentElement.classList.remove("paper");
  drawAll();
});
drawAll();
