"""The page of the lesson: a marimo app over the rest of the lesson, and what serves it.

`serve` guards and serves `app`; `view` is one page of a lesson as HTML with widgets of marimo,
made of the `parts` that its text names.
"""
