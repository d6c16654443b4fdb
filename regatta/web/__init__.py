"""Pages that need only a browser: a run or a version enters, one HTML file leaves.

`templates` has the HTML of each page, `static/css` its styles, `static/js` its scripts. They are written into the page
as they are: no build step, no network, no server. Data is embedded as JSON that cannot end its script element.
"""
