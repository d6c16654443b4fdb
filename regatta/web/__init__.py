"""Pages that need nothing but a browser: a run or a version enters, one HTML file with all it shows leaves.

    gantt.py        what ran where, beside the learning curves: gantt.html and .css, timeline.js, curves.js, gantt.js
    report.py       a search in pictures: report.html and .css, plots.js, learning.js, parallel.js, budget.js, report.js
    version.py      a version: version.html and .css, histograms.js, graph.js, version.js;  layout.py  boxes of layers
    differences.py  what versions differ in: differences.html, differences.js
    importance.py   which hyperparameters the metric depended on
    scales.py       the axes of what varied
    page.py         what all pages share, with page.css and page.js
    table.py        the leaderboard in a notebook

Scripts and styles are written into the page as they are: no build step, no network, no server. Data is embedded as
JSON that cannot end its script element. The package knows runs and versions, not workers or frameworks.
"""
