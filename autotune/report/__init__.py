"""What people and programs see of a study: tables, JSON, CSV, a picture, a page, live progress.

Nothing is re-exported: a list of studies must not wait for what draws fronts, nor a front for matplotlib.
"""
