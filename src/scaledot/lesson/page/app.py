# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The page as a marimo app: it says when to draw again, `view` says what."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="scaledot")


@app.cell
def _():
    import marimo as mo

    from scaledot.lesson.page import view

    return mo, view


@app.cell
def _(mo):
    get_turn, set_turn = mo.state(0)
    return get_turn, set_turn


@app.cell
def _(mo, set_turn, view):
    request = mo.app_meta().request
    page = view.open_page(
        dict(request.meta) if request is not None else {},
        mo.query_params(),
        changed=lambda: set_turn(lambda turn: turn + 1),
    )
    return (page,)


@app.cell
def _(get_turn, mo, page):
    get_turn()
    mo.Html(page.html())
    return


if __name__ == "__main__":
    app.run()
