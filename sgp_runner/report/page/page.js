// Draws the figures in the page's colours, as wide as their boxes, with the legend below.
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)").matches;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

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

// As plotly sets a legend: name after name, until a row is as wide as the plot.
function legendHeight(names, width, size) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  let height = 0, used = Infinity, tallest = 0;
  for (const name of names) {
    const lines = name.split("<br>");
    const needed = 45 + Math.max(...lines.map((line) => pen.measureText(line).width));
    if (used + needed > width) {
      height += tallest;
      used = tallest = 0;
    }
    used += needed;
    tallest = Math.max(tallest, lines.length * size * 1.3 + 5);
  }
  return height + tallest + 10;
}

function draw(figure) {
  const box = document.getElementById(figure.name);
  const width = box.clientWidth;
  const narrow = width < 480;
  const size = narrow ? 11 : 12.5;
  const margin = { l: 48, r: 14 };
  const ink = colour("--ink");
  const grid = colour("--line");
  const data = traces(figure, Math.floor((width - 60) / (0.58 * size)), ink);

  const named = [...new Set(data.filter((t) => t.name && t.showlegend !== false).map((t) => t.name))];
  const legend = figure.layout.showlegend ? legendHeight(named, width - margin.l - margin.r, size) : 0;

  const categories = new Set(data.flatMap((t) => (figure.layout.yaxis.type === "category" ? t.y : []))).size;
  const plot = categories ? 70 + 52 * categories : narrow ? 260 : 340;
  const font = { family: getComputedStyle(document.body).fontFamily, size, color: ink };
  const axis = { gridcolor: grid, linecolor: grid, tickcolor: grid, ticks: "outside", ticklen: 4, showline: true };
  const seen = new Set();
  for (const trace of data) {
    if (trace.name && seen.has(trace.name)) trace.showlegend = false;
    seen.add(trace.name);
  }
  Plotly.react(box, data, {
    width,
    height: plot + 50 + legend,
    margin: { ...margin, t: 12, b: 52 + legend },
    font,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { font: { ...font, size: 12, color: ink }, bgcolor: colour("--paper"), bordercolor: grid, align: "left" },
    hovermode: "closest",
    dragmode: touch ? false : "zoom",
    showlegend: figure.layout.showlegend,
    legend: { orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom", maxheight: 1, bgcolor: "rgba(0,0,0,0)" },
    xaxis: { ...axis, ...figure.layout.xaxis, fixedrange: touch },
    yaxis: { ...axis, ...figure.layout.yaxis, fixedrange: touch },
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
drawAll();
