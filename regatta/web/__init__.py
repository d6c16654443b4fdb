"""Pages that need only a browser: a run or a version enters, one HTML file leaves.

    gantt_page.py       what ran where, beside the learning curves
    report_page.py      a search in pictures
    version_page.py     a version: its network, histograms of its weights
    diff_page.py        what versions differ in
    importance.py       which hyperparameters the metric depended on
    scales.py           axes of parallel coordinates
    graph_layout.py     where the layers of a network are drawn
    page_base.py        what all pages share
    notebook_table.py   the leaderboard in a notebook

`templates` has the HTML of each page, `static/css` its styles, `static/js` its scripts. They are written into the page
as they are: no build step, no network, no server. Data is embedded as JSON that cannot end its script element.
"""
